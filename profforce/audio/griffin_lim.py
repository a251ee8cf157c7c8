"""Built-in vocoder: fast Griffin-Lim whose magnitudes are re-estimated from the mel as it runs.

Griffin-Lim (1984) with the momentum of Perraudin et al. (2013, "A fast Griffin-Lim algorithm").
The plain method first inverts the filterbank once and then trusts those magnitudes, which are
too smooth between the channels' centres. Here every iteration starts again from the magnitudes
of the current signal and moves them onto the mel by one multiplicative update (Lee and Seung
2001, Kullback-Leibler divergence), so harmonics may sharpen while the mel stays matched.

Shapes: T frames, M mel channels, F = n_fft // 2 + 1 bins, K of them seen by the filterbank.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from profforce.audio.mel import mel_filterbank, padding, reflect_pad, require_mel
from profforce.config import MelConfig

MOMENTUM = 0.99
INVERSION_STEPS = 20
"""Updates from a flat spectrum; the mel is then met to about 2e-4 nepers."""
SEED = 0
TINY = 1e-12
FIRST_FRAMES = 8
"""Of the first chunk of a stream; each is twice as long until they have ``LEAST_FRAMES``."""
LEAST_FRAMES = 32
AHEAD_FRAMES = 8
"""Frames beyond a chunk that it is fitted to; its own end is then not an end."""
HELD_FRAMES = 8
"""Frames of the audio before that a chunk is fitted to."""
FADE_HOPS = 2
MAX_LOG_AMPLITUDE = 12.0
"""Far beyond full scale; keeps the exponential of a wild prediction finite."""


class GriffinLim:
    """Vocoder without weights; the same mel always gives the same audio."""

    def __init__(
        self, mel: MelConfig, *, iterations: int = 60, device: str | torch.device = "cpu"
    ) -> None:
        self.mel = mel
        self.iterations = iterations
        filterbank = mel_filterbank(mel).to(device)
        self._seen = filterbank.sum(0) > 0
        self._filters = filterbank[:, self._seen]
        self._gain = self._filters.sum(0)[:, None]
        self._window = torch.hann_window(mel.win_length, device=device)
        side = mel.n_fft - mel.win_length
        self._full_window = F.pad(self._window, (side // 2, side - side // 2))

    @torch.inference_mode()
    def __call__(self, mel: Tensor) -> Tensor:
        """Audio ``[T * hop_length]`` float32 of ``mel [T, M]``, natural-log amplitude."""
        require_mel(mel, self.mel)
        if mel.shape[0] == 0:
            return mel.new_zeros(0, dtype=torch.float32)
        return self.restore(mel, self.random_phase(mel.shape[0], SEED))

    def stream(self) -> "GriffinLimStream":
        """Audio from frames as they come, in chunks that go on where the last one ended."""
        return GriffinLimStream(self)

    def restore(self, mel: Tensor, phase: Tensor, known: Tensor | None = None) -> Tensor:
        """Audio ``[T * hop_length]`` of ``mel [T, M]``, T >= 1, from ``phase [F, T]``, unit values.

        ``known [N]`` is its beginning, to which the rest is fitted; there the result is as found.
        """
        log_mel = mel.to(self._window.device, torch.float32).clamp_max(MAX_LOG_AMPLITUDE)
        target = log_mel.exp().T
        envelope = self._envelope(mel.shape[0])
        magnitude = self.invert(target)
        previous = torch.zeros_like(phase)
        for _ in range(self.iterations):
            audio = self._synthesise(magnitude * phase, envelope)
            if known is not None:
                audio[: len(known)] = known
            rebuilt = self.analyse(audio)
            magnitude = self._spread(self._update(rebuilt.abs()[self._seen], target))
            moved = rebuilt - previous * (MOMENTUM / (1 + MOMENTUM))
            phase = moved / moved.abs().clamp_min(TINY)
            previous = rebuilt
        return self._synthesise(magnitude * phase, envelope)

    def invert(self, target: Tensor) -> Tensor:
        """Smooth non-negative magnitudes ``[F, T]`` whose mel amplitude is ``target [M, T]``."""
        seen = target.mean(0).expand(self._filters.shape[1], -1)
        for _ in range(INVERSION_STEPS):
            seen = self._update(seen, target)
        return self._spread(seen)

    def _update(self, seen: Tensor, target: Tensor) -> Tensor:
        """One multiplicative step of magnitudes ``seen [K, T]`` towards ``target [M, T]``."""
        seen = seen.clamp_min(TINY)
        ratio = target / (self._filters @ seen).clamp_min(TINY)
        return seen * (self._filters.T @ ratio) / self._gain

    def _spread(self, seen: Tensor) -> Tensor:
        """Magnitudes ``[F, T]`` with zeros in the bins no filter sees."""
        magnitude = seen.new_zeros(self._seen.shape[0], seen.shape[1])
        magnitude[self._seen] = seen
        return magnitude

    def random_phase(self, num_frames: int, seed: int) -> Tensor:
        """Unit values ``[F, T]``."""
        generator = torch.Generator().manual_seed(seed)
        turns = torch.rand((len(self._seen), num_frames), generator=generator)
        turns = 2 * torch.pi * turns.to(self._window.device)
        return torch.polar(torch.ones_like(turns), turns)

    def analyse(self, audio: Tensor) -> Tensor:
        """Spectrum ``[F, T]`` framed just as the mel definition frames ``audio [T * hop]``."""
        config = self.mel
        spectrum: Tensor = torch.stft(
            reflect_pad(audio[None], *padding(config)),
            config.n_fft,
            config.hop_length,
            config.win_length,
            self._window,
            center=False,
            return_complex=True,
        )
        return spectrum[0]

    def _synthesise(self, spectrum: Tensor, envelope: Tensor) -> Tensor:
        frames = torch.fft.irfft(spectrum, n=self.mel.n_fft, dim=0)
        return self._overlap_add(frames * self._full_window[:, None]) / envelope

    def _envelope(self, num_frames: int) -> Tensor:
        """Sum of the squared windows over each sample ``[T * hop]``, what synthesis divides by."""
        squared = self._full_window.square()[:, None].expand(-1, num_frames)
        return self._overlap_add(squared).clamp_min(1e-3)

    def _overlap_add(self, frames: Tensor) -> Tensor:
        """Sum ``frames [n_fft, T]`` at their places; the reflected ends are cut off."""
        config = self.mel
        num_samples = frames.shape[1] * config.hop_length
        left, right = padding(config)
        whole = F.fold(
            frames[None],
            output_size=(1, num_samples + left + right),
            kernel_size=(1, config.n_fft),
            stride=(1, config.hop_length),
        )
        return whole[0, 0, 0, left : left + num_samples]


class GriffinLimStream:
    """One utterance's audio in chunks.

    Each chunk is restored together with the end of the audio before, which is held as it is (Zhu,
    Beauregard and Wyse 2007, "Real-time signal estimation from modified short-time Fourier
    transform magnitude spectra"), and with frames ahead, whose audio is a first guess only. So
    the phases go on over the seam; what is left of a difference is faded over.
    """

    def __init__(self, vocoder: GriffinLim) -> None:
        self._vocoder = vocoder
        self._mel: Tensor | None = None
        """``[T, M]``: the frames whose audio is held, then those that are still to come out."""
        self._guess: Tensor | None = None
        """``[N]``, the last chunk's audio from the first of these frames on."""
        self._held = 0
        """Frames of audio that have come out and are held."""
        self._num_chunks = 0

    @torch.inference_mode()
    def push(self, mel: Tensor, last: bool) -> Tensor:
        """Audio ``[k hop_length]`` for ``mel [n, M]``, once there is enough; all of it if last."""
        require_mel(mel, self._vocoder.mel)
        self._mel = mel if self._mel is None else torch.cat([self._mel, mel])
        pending = len(self._mel) - self._held
        least = min(FIRST_FRAMES * 2**self._num_chunks, LEAST_FRAMES)
        if not pending or (pending < least + AHEAD_FRAMES and not last):
            return mel.new_zeros(0, dtype=torch.float32)
        return self._restore(pending if last else pending - AHEAD_FRAMES)

    def _restore(self, ready: int) -> Tensor:
        """The audio of the next ``ready`` frames."""
        assert self._mel is not None
        hop, vocoder, guess = self._vocoder.mel.hop_length, self._vocoder, self._guess
        begin, end = self._held * hop, (self._held + ready) * hop
        phase = vocoder.random_phase(len(self._mel), SEED + self._num_chunks)
        if guess is None:
            audio = vocoder.restore(self._mel, phase)
        else:
            found = vocoder.analyse(guess)
            phase[:, : found.shape[1]] = found / found.abs().clamp_min(TINY)
            audio = vocoder.restore(self._mel, phase, guess[:begin])
            fade = min(FADE_HOPS * hop, len(guess) - begin, end - begin)
            ramp = torch.linspace(0, 1, fade + 2, device=audio.device)[1:-1]
            audio[:begin] = guess[:begin]
            audio[begin : begin + fade].lerp_(guess[begin : begin + fade], 1 - ramp)
        self._num_chunks += 1
        drop = max(self._held + ready - HELD_FRAMES, 0)
        self._held += ready - drop
        self._mel, self._guess = self._mel[drop:], audio[drop * hop :]
        return audio[begin:end]
