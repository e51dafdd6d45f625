"""A model's tokens as llguidance asks for them."""

from functools import cached_property

from foredraft.models.tokenizer import Tokenizer


class Vocabulary:
    """In the form of llguidance's `TokenizerWrapper`. An exception would end the process: it raises none."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        known = min(tokenizer.vocab_size, vocab)
        self.tokens = [tokenizer.token_bytes(token) for token in range(known)]
        self.tokens += [b""] * (vocab - known)  # padding, which stands for nothing
        self.special_token_ids = sorted(tokenizer.special_ids | tokenizer.eos_ids)
        self.eos_token_id = min(tokenizer.eos_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """The usual tokens of exactly this text, in the midst of others."""
        data = text.encode()
        ids = self._tokenizer.encode(text)
        if self._tokenizer.space_prefix:  # before a text, but here nothing begins
            ids = self._tokenizer.encode("\x02" + text)
            start = next((size for size in (1, 2) if self._tokenizer.decode_bytes(ids[:size]) == b" \x02"), 0)
            ids = ids[start:]
        return ids if self._tokenizer.decode_bytes(ids) == data else self._longest_first(data)

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        special = frozenset(self.special_token_ids)
        return {data: token for token, data in enumerate(self.tokens) if token not in special}

    def _longest_first(self, data: bytes) -> list[int]:
        """Where the tokenizer knows no token for something, or reads it as something else."""
        longest = max(map(len, self._ids))
        ids: list[int] = []
        start = 0
        while start < len(data):
            sizes = range(min(longest, len(data) - start), 0, -1)
            size = next((size for size in sizes if data[start : start + size] in self._ids), 0)
            if size:
                ids.append(self._ids[data[start : start + size]])
            start += size or 1
        return ids
