"""How much of each run is shown, so that the page of many runs stays small."""

from dataclasses import dataclass

_FIGURE_BYTES = 1_500_000


@dataclass(frozen=True)
class Limits:
    """What a page holds of each run at most.

    Attributes:
        points: points of a curve.
        samples: samples.
        characters: characters of a text.
        files: files of a source.
        classes: classes of a confusion matrix.
        figure_bytes: size of its figure.
    """

    points: int
    samples: int
    characters: int
    files: int
    classes: int
    figure_bytes: int

    @classmethod
    def of(cls, runs: int) -> "Limits":
        """The limits of a page of some runs."""

        def shared(whole: int, least: int, most: int) -> int:
            return max(least, min(most, whole // max(1, runs)))

        return cls(
            points=shared(60_000, 60, 500),
            samples=shared(1_000, 2, 16),
            characters=shared(600_000, 600, 4_000),
            files=shared(2_000, 4, 20),
            classes=shared(1_000, 10, 30),
            figure_bytes=_FIGURE_BYTES // max(1, runs),
        )
