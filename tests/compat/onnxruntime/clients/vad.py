"""Detect speech in a sound with ``silero-vad``."""

import json

import numpy as np
import onnxruntime
import torch
from silero_vad import get_speech_timestamps, load_silero_vad

RATE = 16000
model = load_silero_vad(onnx=True)
time = torch.arange(RATE * 6) / RATE
wave = 0.02 * torch.randn(RATE * 6, generator=torch.Generator().manual_seed(0))
speaking = (((time > 1) & (time < 2.5)) | ((time > 3.5) & (time < 5))).float()
loudness = speaking * 0.15 * (0.5 + 0.5 * torch.sin(6 * np.pi * time))
for frequency in (120, 240, 360, 480, 700, 1100, 2400):
    wave += loudness * torch.sin(2 * np.pi * frequency * time * (1 + 0.02 * torch.sin(10 * np.pi * time)))
spans = get_speech_timestamps(wave, model, threshold=0.3)
chances = model.audio_forward(wave.unsqueeze(0), RATE).ravel().tolist()
print(json.dumps({"module": onnxruntime.__name__, "texts": [str(span) for span in spans], "numbers": [chances]}))
