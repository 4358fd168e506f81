"""Networks of torchaudio by small configurations, and its transforms and filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

RATE = 8000
Case = Callable[[], tuple[Any, tuple[Any, ...]]]


def cases() -> dict[str, Case]:
    """Return networks and transforms with example inputs, by name."""
    return {**_networks(), **_transforms(), **_filters()}


def _networks() -> dict[str, Case]:
    import torch
    from torchaudio import models

    drawn = torch.randn

    def lengths(*values: int) -> Any:
        return torch.tensor(values)

    wave = {
        "extractor_conv_layer_config": [(16, 10, 5), (16, 3, 2)],
        "extractor_conv_bias": False,
        "encoder_embed_dim": 32,
        "encoder_projection_dropout": 0.0,
        "encoder_pos_conv_kernel": 16,
        "encoder_pos_conv_groups": 4,
        "encoder_num_layers": 2,
        "encoder_num_heads": 4,
        "encoder_attention_dropout": 0.0,
        "encoder_ff_interm_features": 64,
        "encoder_ff_interm_dropout": 0.0,
        "encoder_dropout": 0.0,
        "encoder_layer_drop": 0.0,
        "aux_num_out": 10,
    }
    before = {**wave, "extractor_mode": "layer_norm", "encoder_layer_norm_first": True}
    after = {**wave, "extractor_mode": "group_norm", "encoder_layer_norm_first": False}
    transducer = {
        "input_dim": 16,
        "encoding_dim": 24,
        "num_symbols": 12,
        "segment_length": 4,
        "right_context_length": 2,
        "time_reduction_input_dim": 8,
        "time_reduction_stride": 2,
        "transformer_num_heads": 2,
        "transformer_ffn_dim": 32,
        "transformer_num_layers": 1,
        "transformer_dropout": 0.0,
        "transformer_activation": "gelu",
        "transformer_left_context_length": 4,
        "transformer_max_memory_size": 0,
        "transformer_weight_init_scale_strategy": "depthwise",
        "transformer_tanh_on_mem": True,
        "symbol_embedding_dim": 16,
        "num_lstm_layers": 1,
        "lstm_layer_norm": True,
        "lstm_layer_norm_epsilon": 1e-3,
        "lstm_dropout": 0.0,
    }
    speech = {
        "n_mels": 16,
        "n_symbol": 20,
        "symbol_embedding_dim": 32,
        "encoder_embedding_dim": 32,
        "decoder_rnn_dim": 32,
        "attention_rnn_dim": 32,
        "attention_hidden_dim": 16,
        "attention_location_n_filter": 8,
        "attention_location_kernel_size": 7,
        "prenet_dim": 16,
        "postnet_embedding_dim": 16,
    }
    squim = {
        "feat_dim": 16,
        "win_len": 16,
        "d_model": 16,
        "nhead": 2,
        "hidden_dim": 8,
        "num_blocks": 1,
        "rnn_type": "LSTM",
        "chunk_size": 10,
    }
    sizes = {"enc_num_feats": 16, "msk_num_feats": 8, "msk_num_hidden_feats": 16, "msk_num_layers": 2}
    sources = ["drums", "voice"]
    table: dict[str, Case] = {
        "ConvTasNet": lambda: (models.ConvTasNet(**sizes, msk_num_stacks=2), (drawn(2, 1, 400),)),
        "DeepSpeech": lambda: (models.DeepSpeech(12, n_hidden=16, n_class=8), (drawn(2, 1, 9, 12),)),
        "Wav2Letter": lambda: (models.Wav2Letter(8, "mfcc", 13), (drawn(2, 13, 60),)),
        "Wav2Letter.waveform": lambda: (models.Wav2Letter(8), (drawn(2, 1, 6000),)),
        "Conformer": lambda: (
            models.Conformer(16, 2, 32, 2, 7),
            (drawn(2, 9, 16), lengths(9, 6)),
        ),
        "Conformer.convolution_first": lambda: (
            models.Conformer(16, 2, 32, 1, 7, use_group_norm=True, convolution_first=True),
            (drawn(2, 9, 16), lengths(9, 6)),
        ),
        "Emformer": lambda: (
            models.Emformer(16, 2, 32, 2, 4, left_context_length=4, right_context_length=1, max_memory_size=2),
            (drawn(2, 13, 16), lengths(12, 9)),
        ),
        "HDemucs": lambda: (models.HDemucs(sources, 1, channels=8, nfft=256, depth=4), (drawn(2, 1, 2048),)),
        "Tacotron2": lambda: (
            models.Tacotron2(**speech),
            (torch.randint(0, 20, (2, 7)), lengths(7, 5), drawn(2, 16, 6), lengths(6, 4)),
        ),
        "Wav2Vec2.layer_norm": lambda: (models.wav2vec2_model(**before), (drawn(2, 800),)),
        "Wav2Vec2.group_norm": lambda: (models.wav2vec2_model(**after), (drawn(2, 800),)),
        "Wav2Vec2.lengths": lambda: (models.wav2vec2_model(**before), (drawn(2, 800), lengths(800, 500))),
        "WavLM": lambda: (
            models.wavlm_model(**after, encoder_num_buckets=32, encoder_max_distance=80),
            (drawn(2, 800),),
        ),
        "WaveRNN": lambda: (
            models.WaveRNN([2, 2, 2], 16, 8, 2, 16, 16, 5, 12, 16, 16),
            (drawn(2, 1, (9 - 5 + 1) * 8), drawn(2, 1, 12, 9)),
        ),
        "SquimObjective": lambda: (models.squim_objective_model(**squim), (drawn(2, 400),)),
        "RNNT": lambda: (
            models.emformer_rnnt_model(**transducer),
            (drawn(2, 18, 16), lengths(18, 14), torch.randint(0, 12, (2, 4)), lengths(4, 3)),
        ),
    }

    def build(make: Case) -> Case:
        def built() -> tuple[Any, tuple[Any, ...]]:
            torch.manual_seed(0)
            module, inputs = make()
            return module.eval(), inputs

        return built

    return {f"models.{name}": build(make) for name, make in table.items()}


def _transforms() -> dict[str, Case]:
    import torch
    from torchaudio import transforms

    torch.manual_seed(0)
    sound = torch.randn(2, 800)
    bands = torch.rand(2, 33, 20)
    spectra = torch.randn(2, 33, 20, dtype=torch.complex64)
    channels = torch.randn(2, 3, 33, 20, dtype=torch.complex64)
    masks = torch.rand(2, 33, 20)
    spectral = {"n_fft": 64, "hop_length": 32}
    mel = {**spectral, "n_mels": 12}
    table: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
        "AmplitudeToDB": ({"top_db": 80.0}, (bands,)),
        "ComputeDeltas": ({}, (bands,)),
        "Convolve": ({}, (sound, sound[:, :31])),
        "Deemphasis": ({}, (sound,)),
        "FFTConvolve": ({"mode": "same"}, (sound, sound[:, :31])),
        "Fade": ({"fade_in_len": 50, "fade_out_len": 100, "fade_shape": "logarithmic"}, (sound,)),
        "GriffinLim": ({**spectral, "n_iter": 2, "rand_init": False}, (bands,)),
        "InverseMelScale": ({"n_stft": 33, "n_mels": 12}, (bands[:, :12],)),
        "InverseSpectrogram": (spectral, (spectra,)),
        "LFCC": ({"n_lfcc": 8, "n_filter": 12, "speckwargs": spectral}, (sound,)),
        "Loudness": ({"sample_rate": RATE}, (torch.randn(2, 1, 8000),)),
        "MFCC": ({"n_mfcc": 8, "melkwargs": mel}, (sound,)),
        "MFCC.log": ({"n_mfcc": 8, "log_mels": True, "melkwargs": mel}, (sound,)),
        "MVDR": ({}, (channels.to(torch.complex128), masks)),
        "MelScale": ({"n_mels": 12, "n_stft": 33}, (bands,)),
        "MelSpectrogram": (mel, (sound,)),
        "MelSpectrogram.slaney": ({**mel, "norm": "slaney", "mel_scale": "slaney", "power": 1.0}, (sound,)),
        "MuLawDecoding": ({}, (torch.randint(0, 256, (2, 50)),)),
        "MuLawEncoding": ({}, (torch.rand(2, 50) * 2 - 1,)),
        "PSD": ({}, (channels, masks)),
        "PitchShift": ({"sample_rate": RATE, "n_steps": 3, "n_fft": 64}, (sound,)),
        "Preemphasis": ({}, (sound,)),
        "Resample": ({"orig_freq": RATE, "new_freq": 5000}, (sound,)),
        "Resample.kaiser": (
            {"orig_freq": 5000, "new_freq": RATE, "resampling_method": "sinc_interp_kaiser"},
            (sound,),
        ),
        "RTFMVDR": ({}, (channels, channels[..., 0].mT, torch.randn(2, 33, 3, 3, dtype=torch.complex64), 0)),
        "SlidingWindowCmn": ({"cmn_window": 7, "norm_vars": True}, (bands,)),
        "SpectralCentroid": ({"sample_rate": RATE, **spectral}, (sound,)),
        "Spectrogram": (spectral, (sound,)),
        "Spectrogram.complex": ({**spectral, "power": None}, (sound,)),
        "Spectrogram.normalized": ({**spectral, "normalized": True, "center": False}, (sound,)),
        "Speed": ({"orig_freq": RATE, "factor": 1.25}, (sound,)),
        "TimeStretch": ({"hop_length": 32, "n_freq": 33, "fixed_rate": 1.25}, (spectra,)),
        "Vol": ({"gain": -6.0, "gain_type": "db"}, (sound,)),
    }
    missing = set(table) - {name for name in table if hasattr(transforms, name.partition(".")[0])}

    def build(name: str, options: dict[str, Any], inputs: tuple[Any, ...]) -> Case:
        return lambda: (getattr(transforms, name.partition(".")[0])(**options).eval(), inputs)

    return {
        f"transforms.{name}": build(name, options, inputs)
        for name, (options, inputs) in table.items()
        if name not in missing
    }


def _filters() -> dict[str, Case]:
    import torch
    from torchaudio import functional

    torch.manual_seed(0)
    sound = torch.rand(2, 300) - 0.5
    table: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "lfilter": ((torch.tensor([1.0, -0.5, 0.2]), torch.tensor([0.3, 0.2, 0.1])), {}),
        "filtfilt": ((torch.tensor([1.0, -0.5, 0.2]), torch.tensor([0.3, 0.2, 0.1])), {}),
        "lowpass_biquad": ((RATE, 1000.0), {}),
        "equalizer_biquad": ((RATE, 1000.0, 3.0), {}),
        "treble_biquad": ((RATE, 4.0), {}),
        "riaa_biquad": ((44100,), {}),
        "contrast": ((), {}),
        "dcshift": ((0.1,), {"limiter_gain": 0.05}),
        "gain": ((2.0,), {}),
        "overdrive": ((), {}),
        "phaser": ((RATE,), {}),
        "flanger": ((RATE,), {}),
        "detect_pitch_frequency": ((RATE,), {"frame_time": 0.01, "win_length": 3, "freq_low": 200}),
        "speed": ((RATE, 1.25), {}),
    }

    def build(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Case:
        class Filter(torch.nn.Module):
            def forward(self, waveform: Any) -> Any:
                return getattr(functional, name)(waveform, *arguments, **options)

        values = sound[:, None] if name == "flanger" else sound
        return lambda: (Filter(), (values,))

    return {f"functional.{name}": build(name, *row) for name, row in table.items()}
