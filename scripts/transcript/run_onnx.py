"""Run the exported program. It needs onnxruntime, and neither PyTorch nor nac_openood."""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession("digits.onnx")
about = json.loads(session.get_modelmeta().custom_metadata_map["nac_openood"])
for path in sys.argv[1:]:
    pixels = np.asarray(Image.open(path).convert("RGB").resize((32, 32)), dtype=np.float32)
    image = (pixels.transpose(2, 0, 1)[None] / 255 - 0.5) / 0.5
    logits, score, p_value, out = session.run(None, {"image": image})
    word = "out" if out[0] else "in"
    name = about["classes"][logits[0].argmax()]
    print(f"{path}: {name}, p-value {p_value[0]:.4f}, {word}")
