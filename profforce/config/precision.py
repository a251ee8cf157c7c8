"""Precisions, of training and of free runs."""

from enum import StrEnum


class Precision(StrEnum):
    """Of the weights while a model free-runs. auto: bfloat16 where the processor multiplies it."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    int8 = "int8"


class TrainerPrecision(StrEnum):
    """Of the matrix products in training; weights and losses are float32."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
