"""TGI's own routes, byte for byte as version 3 answers them but for the differences in `docs/clients.md`."""
