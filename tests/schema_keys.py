"""All sections of the schema and their keys."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from moray.config.schema import Experiment


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """All models that the schema consists of, from this one down."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models_in(field.annotation)
    for argument in get_args(annotation):
        yield from models_in(argument)


MODELS = dict.fromkeys(models_in(Experiment))
KEYS = [(model, key) for model in MODELS for key in model.model_fields]
