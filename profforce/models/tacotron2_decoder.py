"""Tacotron 2's decoder between prenet and outputs: LSTMs, of which the first attends to the text.

Shapes: B batch, U decoder steps, S symbols, D width, P prenet width, L LSTMs above the first.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from profforce.config import ModelConfig
from profforce.nn.attention import Memory
from profforce.nn.location_attention import Attended, LocationAttention


class DecoderState(NamedTuple):
    """What a step hands to the next; every tensor has the batch first."""

    hidden: Tensor
    """``[B, D]``, of the LSTM that attends."""
    cell: Tensor
    """``[B, D]``, of the same."""
    attended: Attended
    upper_hidden: Tensor
    """``[B, L, D]``, of the LSTMs above it."""
    upper_cell: Tensor
    """``[B, L, D]``"""


class RecurrentDecoder(nn.Module):
    """LSTMs over steps (Shen et al. 2018, arXiv:1712.05884, section 2.2).

    Dropout between the layers stands in for the paper's zoneout. One form serves both views: the
    step form is :meth:`forward` on one step.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, above = config.width, config.decoder_layers - 1
        self.gates_in = nn.Linear(config.prenet_width, 4 * width)
        self.gates = nn.Linear(2 * width, 4 * width, bias=False)
        """From the last hidden state and context."""
        self.attention = LocationAttention(
            width, config.attention_width, config.location_channels, config.location_kernel
        )
        self.upper: nn.LSTM | None = None
        if above:
            between = config.dropout if above > 1 else 0.0
            self.upper = nn.LSTM(2 * width, width, above, batch_first=True, dropout=between)
        self.dropout = nn.Dropout(config.dropout)
        self.width, self.above = width, above

    def init_state(self, memory: Memory) -> DecoderState:
        """Before the first step."""
        own = memory.v.new_zeros(len(memory.v), self.width)
        above = own[:, None].repeat(1, self.above, 1)
        return DecoderState(own, own, self.attention.init_state(memory), above, above)

    def forward(
        self, x: Tensor, memory: Memory, state: DecoderState
    ) -> tuple[Tensor, Tensor, DecoderState]:
        """Steps in a row.

        Args:
            x: ``[B, U, P]``, of the prenet.
            memory: of :meth:`LocationAttention.memory`.
            state: before the first of them.

        Returns:
            ``(hidden [B, U, 2 * D], weights [B, U, S], state)``: the last LSTM's outputs beside the
            contexts, where attention was, and the state after the last step.
        """
        hidden, cell, attended = state[:3]
        location = self.attention.location_weight()
        outputs, contexts, weights = [], [], []
        for given in self.gates_in(x).unbind(1):
            recurrent = self.gates(torch.cat([hidden, attended.context], 1))
            hidden, cell = lstm_cell(given + recurrent, cell)
            attended = self.attention(hidden, memory, attended, location)
            outputs.append(hidden)
            contexts.append(attended.context)
            weights.append(attended.weights)
        output, context = self.dropout(torch.stack(outputs, 1)), torch.stack(contexts, 1)
        above = state.upper_hidden, state.upper_cell
        if self.upper is not None:  # nothing below waits for it: all steps at once
            before = tuple(part.transpose(0, 1).contiguous() for part in above)
            output, after = self.upper(torch.cat([output, context], 2), before)
            output = self.dropout(output)
            above = tuple(part.transpose(0, 1) for part in after)
        last = DecoderState(hidden, cell, attended, *above)
        return torch.cat([output, context], 2), torch.stack(weights, 1), last


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden state and cell ``[B, D]`` of an LSTM from its gates.

    Args:
        gates: ``[B, 4 * D]`` before their nonlinearities: input, forget, output, candidate.
        cell: ``[B, D]`` of the step before.
    """
    width = cell.shape[1]
    into, keep, out = gates[:, : 3 * width].sigmoid().chunk(3, 1)
    cell = keep * cell + into * gates[:, 3 * width :].tanh()
    return out * cell.tanh(), cell
