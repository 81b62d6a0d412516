"""Log-probabilities that were recorded while sampling, in place of those that TRL would compute again."""

from __future__ import annotations

from typing import Any

import torch

from trl_spiral.rollout_func import SelfPlayRollout


class SampledLogprobsMixin:
    """
    Over [`~trl.GRPOTrainer`] with a [`SelfPlayRollout`]: the sampled log-probabilities are those of the old policy.

    They are the same numbers that TRL would compute, without its forward pass. They also hold for rows that earlier
    weights wrote and that were kept for this batch. The difference from the trainer's own log-probabilities is logged.
    """

    rollout: SelfPlayRollout
    _old_logps_due = False
    _latest_logps: torch.Tensor | None = None

    def _generate_and_score_completions(self, inputs):
        # TRL's first call for log-probabilities, if it makes one here, is for those of the old policy.
        self._old_logps_due = self._needs_old_logps() and not self._corrects_for_vllm
        output = super()._generate_and_score_completions(inputs)
        self._old_logps_due = False
        rows = self.rollout.batch.rows
        waited = [row.version != self.state.global_step for row in rows]
        if self.model.training and any(waited) and not self._corrects_for_vllm:
            # TRL assumes a first ratio of 1 where it can, which is wrong for rows of earlier weights. Its correction
            # for vLLM covers them: there the ratio is to the policy that sampled.
            width = output["completion_ids"].size(1)
            output["old_per_token_logps"] = self._padded([row.logprobs for row in rows], width)
        output["selfplay_waited"] = torch.tensor(waited, device=self.accelerator.device)
        return output

    @property
    def _corrects_for_vllm(self) -> bool:
        """Return whether TRL itself corrects for the difference between its log-probabilities and the sampler's."""
        return self.use_vllm and self.vllm_importance_sampling_correction

    def _needs_old_logps(self) -> bool:
        """Return whether TRL would compute the old log-probabilities of a batch (as in TRL 1.16)."""
        cycle = self.args.steps_per_generation * self.num_iterations
        return self.args.gradient_accumulation_steps % cycle != 0

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        if self._old_logps_due and not torch.is_grad_enabled():
            self._old_logps_due = False
            return self._padded([row.logprobs for row in self.rollout.batch.rows], logits_to_keep), None, None
        result = super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )
        self._latest_logps = result[0].detach()
        return result

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        cycle = self.args.steps_per_generation * self.num_iterations
        if self.model.training and self._step % cycle < self.args.gradient_accumulation_steps:
            self._log_logprob_difference(inputs)
        return loss

    def _log_logprob_difference(self, inputs: dict[str, Any]) -> None:
        """
        Log the difference between the sampled log-probabilities and the trainer's.

        Every rank must call it, before any step on this batch. Rows of earlier weights are left out; TRL's metric of
        the same name, which exists only for vLLM, includes them.
        """
        written = inputs["completion_mask"] * inputs.get("tool_mask", 1) * ~inputs["selfplay_waited"][:, None]
        difference = (self._latest_logps - inputs["sampling_per_token_logps"]).abs()[written.bool()]
        totals = torch.stack([difference.sum(), torch.tensor(difference.numel(), device=difference.device)])
        largest = difference.max() if difference.numel() else torch.zeros((), device=difference.device)
        total, number = self.accelerator.reduce(totals, "sum").tolist()
        largest = self.accelerator.gather(largest).max().item()
        if number:
            self._metrics["train"]["selfplay/logprob_difference/mean"].append(total / number)
            self._metrics["train"]["selfplay/logprob_difference/max"].append(largest)

    def _padded(self, values: list[list[float]], width: int) -> torch.Tensor:
        """Return a tensor of shape (rows, width), with zeros on the right."""
        return torch.tensor(
            [row + [0.0] * (width - len(row)) for row in values], dtype=torch.float32, device=self.accelerator.device
        )
