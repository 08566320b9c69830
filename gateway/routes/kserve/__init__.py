"""The Open Inference Protocol, KServe's version 2, with Triton's extensions, as Triton Inference Server speaks it.

Three models are served: the model itself (`text_model.py`), its tokenizer and its logits. What they take and answer are
tensors (`inference.py`); HTTP is in the other modules here, gRPC in `gateway.grpc`.
"""
