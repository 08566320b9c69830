"""The contract between gateway and engine: `engine.proto`, the code generated from it, how a connection is made, and
the limits of a request.

Nothing here imports JAX.

The generated files are committed. They are made with the oldest tools whose output every supported run-time accepts
(grpcio >= 1.74, protobuf >= 6.31), in a separate environment, from the root of the repository:

    pip install grpcio-tools==1.74.0 protobuf==6.31.1
    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. jaxengine/rpc/engine.proto
"""
