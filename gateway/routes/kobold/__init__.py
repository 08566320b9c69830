"""KoboldAI's routes with KoboldCpp's extensions, which SillyTavern and other clients speak, over `/v1/completions`.

What KoboldCpp does with a field and this server cannot is refused by name; what KoboldCpp ignores is ignored.
"""
