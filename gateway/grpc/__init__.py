"""The Open Inference Protocol over gRPC, with Triton's extensions: what `gateway.routes.kserve` serves, as gRPC calls.

It is for Triton's and KServe's clients, on a port of its own (`--grpc-port`), with HTTP's keys and limits.

`open_inference.proto` has the messages. Its package is a name of ours, which never goes over the wire: files of the
protocol's own package, `inference`, come with its clients, and a process cannot hold two of them. For the same reason
no service is generated; `service.py` has the calls by their names. The generated files are committed, and made as
`jaxengine.rpc` says:

    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. gateway/grpc/open_inference.proto
"""
