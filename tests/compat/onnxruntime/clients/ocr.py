"""Read text from an image with ``rapidocr-onnxruntime``."""

import json

import cv2
import numpy as np
import onnxruntime
from rapidocr_onnxruntime import RapidOCR

image = np.full((160, 640, 3), 255, np.uint8)
cv2.putText(image, "Hello Sardonyx 2026", (20, 60), cv2.FONT_HERSHEY_SIMPLEX, 1.6, (0, 0, 0), 3)
cv2.putText(image, "banded onyx", (20, 130), cv2.FONT_HERSHEY_SIMPLEX, 1.4, (0, 0, 0), 3)
lines, _ = RapidOCR()(image)
texts = [text for _, text, _ in lines]
numbers = [[*np.asarray(box).ravel().tolist(), float(score)] for box, _, score in lines]
print(json.dumps({"module": onnxruntime.__name__, "texts": texts, "numbers": numbers}))
