"""Model FLOPs utilisation: what training needs by arithmetic, over what the device could do in that time."""

PEAKS = {
    "B200": 2250e12,
    "H200": 989.4e12,
    "H100": 989.4e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165.2e12,
}
"""Dense bf16 operations a second by part of a device's name, from the makers' data sheets; of several that fit the longest name counts."""


def per_token(parameters: int, layers: int, hidden: int, length: float) -> float:
    """Floating-point operations of forward and backward for one token: 6 N + 12 L H T. Source: Chowdhery et al. 2022 (PaLM), appendix B.

    Args:
        parameters: all of them, the embeddings too where the output layer is tied to them.
        length: tokens of a sequence.
    """
    return 6 * parameters + 12 * layers * hidden * length


def peak_of(device: str) -> float | None:
    """Operations a second of a device by its name; None where it is not known."""
    fitting = [name for name in PEAKS if name in device]
    return PEAKS[max(fitting, key=len)] if fitting else None


def utilisation(tokens_per_s: float, operations_per_token: float, peak: float | None) -> float | None:
    """Share of the device's peak that the model's own arithmetic takes; None without a peak."""
    return None if peak is None else tokens_per_s * operations_per_token / peak
