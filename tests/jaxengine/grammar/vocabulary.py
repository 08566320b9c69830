"""A byte-level vocabulary of a few hundred ids, as `tokenizer.json` spells it."""

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SIZE = 400
EOS = 2
SPECIALS = ["<pad>", "<s>", "</s>"]
CORPUS = ['{"name": "value", "number": 12, "list": [true, false, null]}', "the quick brown fox", "0123456789"] * 9


@cache
def tokenizer_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    assert tokenizer.get_vocab_size() <= SIZE
    return str(tokenizer.to_str())
