"""The contract between gateway and engine: `engine.proto`, the code generated from it, how a connection is made, and
how much a request may carry.

Nothing here imports JAX, and the gateway imports nothing else of the engine.

The generated files are committed. They are made with the oldest tools whose output every supported run-time accepts
(grpcio >= 1.74, protobuf >= 6.31), in an environment of their own, from the repository's root:

    pip install grpcio-tools==1.74.0 protobuf==6.31.1
    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. jaxengine/rpc/engine.proto
"""
