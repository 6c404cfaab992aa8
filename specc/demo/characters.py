"""A character tokenizer: one token a character, and it adds nothing of its own to a text."""

# mypy: allow-untyped-calls
# (transformers leaves many constructors and methods without annotations)

from __future__ import annotations

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
SPECIAL = (PAD, BOS, EOS, UNK)


def character_tokenizer(alphabet: str, context: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of `alphabet` for texts of up to `context` tokens.

    Pad, BOS and EOS are three tokens, so that a script that takes one for another is found out. BOS exists but is not
    prepended: a text has the same tokens whether special tokens are asked for or not, and a completion's tokens are
    the same with its prompt and without. `<eos>` written in a text is the EOS token.
    """
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *alphabet))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],  # no token_type_ids, which generate refuses
    )
