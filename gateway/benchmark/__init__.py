"""`text-generation-benchmark`: how fast an engine or a server is, and how many users it serves.

Over an engine's socket it is TGI's benchmark: batches of a fixed size, prefill and decode apart. With `--url` it is a
load on any OpenAI or TGI server: so many requests in flight, or so many a second. It measures and reports; it starts no
server, and judges no text.
"""
