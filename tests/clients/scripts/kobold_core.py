"""A client of KoboldCpp that writes prompts by the template of the model it finds. It asks for that without a key."""

import json
import sys

from koboldapi import KoboldAPICore

job = json.loads(sys.argv[1])
core = KoboldAPICore(job["url"])
text = core.wrap_and_generate("Say it.", max_length=4, temperature=0)
print(json.dumps({"info": core.get_model_info(), "text": text}))
