"""TGI's own routes, byte for byte as version 3 answers them; `routes.py` lists where we differ and why."""
