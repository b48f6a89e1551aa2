"""The losses of pairs of answers, by the log-probabilities of both."""

import torch
import torch.nn.functional as F
from torch import Tensor

from moray.config.schema.losses import Preference


def preference_losses(
    answers: Tensor, reference: Tensor, lengths: Tensor, settings: Preference
) -> Tensor:
    """Loss of each pair.

    Sources: `dpo`: Rafailov et al., "Direct Preference Optimization", 2023; with
    `label_smoothing`, Mitchell, "A note on DPO with noisy preferences and relationship to IPO",
    2023. `ipo`: Azar et al., "A general theoretical paradigm to understand learning from human
    preferences", 2023, equation 17. `hinge`: Zhao et al., "SLiC-HF", 2023. `robust`: Chowdhury et
    al., "Provably Robust DPO", 2024, equation 10. `cpo`: Xu et al., "Contrastive Preference
    Optimization", 2024, equation 5. `simpo`: Meng et al., "SimPO", 2024, equation 6. `orpo`: Hong
    et al., "ORPO", 2024, equations 6 and 7. `rpo_alpha`: Pang et al., "Iterative Reasoning
    Preference Optimization", 2024, equation 1. Names and averages over tokens are those of TRL.

    Args:
        answers: log-probability of each answer under the model, nats, shape (pairs, 2): chosen,
            rejected.
        reference: the same under the reference; zeros without one.
        lengths: number of tokens of each answer, shape (pairs, 2).

    Returns:
        Shape (pairs,).
    """
    scores = _scores(answers, reference, lengths, settings)
    losses = _losses(scores, settings)
    if weight := likelihood_weight(settings):
        losses = losses - weight * (answers / lengths)[:, 0]
    return losses


def likelihood_weight(settings: Preference) -> float:
    """The weight of the chosen answer's negative log-likelihood."""
    if settings.rpo_alpha is None:
        return 1.0 if settings.loss in ("cpo", "orpo") else 0.0
    return settings.rpo_alpha


def margins(answers: Tensor, reference: Tensor, lengths: Tensor, settings: Preference) -> Tensor:
    """Reward of each chosen answer minus that of the rejected one, shape (pairs,).

    With a reference, a reward is β times the change of the log-probability of the whole answer;
    without one, β times what the loss has of it.
    """
    ratios = answers - reference
    scores = ratios if settings.has_reference else _scores(answers, reference, lengths, settings)
    return settings.beta * (scores[:, 0] - scores[:, 1])


def _scores(answers: Tensor, reference: Tensor, lengths: Tensor, settings: Preference) -> Tensor:
    ratios = answers - reference
    return ratios / lengths if settings.is_per_token else ratios


def _losses(scores: Tensor, settings: Preference) -> Tensor:
    beta, smoothing = settings.beta, settings.label_smoothing
    chosen, rejected = scores.unbind(1)
    difference = chosen - rejected
    match settings.loss:
        case "ipo":
            return (difference - 1 / (2 * beta)) ** 2
        case "hinge":
            return F.relu(1 - beta * difference)
        case "orpo":
            return -beta * F.logsigmoid(difference - (_log1mexp(chosen) - _log1mexp(rejected)))
    margins = beta * difference
    if settings.loss == "simpo":
        margins = margins - settings.simpo_gamma
    kept, swapped = -F.logsigmoid(margins), -F.logsigmoid(-margins)
    if settings.loss == "robust":
        return (kept * (1 - smoothing) - swapped * smoothing) / (1 - 2 * smoothing)
    return kept * (1 - smoothing) + swapped * smoothing


def _log1mexp(values: Tensor) -> Tensor:
    """log(1 - exp(x)) of negative numbers; of those that round to 0, as of the nearest below."""
    values = values.clamp(max=-torch.finfo(values.dtype).eps)
    return torch.log(-torch.expm1(values))
