"""A worker of a data loader asks its parent for the number of a word that it does not know."""

import multiprocessing
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

faulty = sys.argv[1:] == ["faulty"]
WORDS = ["a", "model", "learns", "to", "count"]


class Vocabulary:
    """Its parent's side gives out numbers, its worker's side asks for them."""

    def __init__(self) -> None:
        self.numbers = {word: number for number, word in enumerate(WORDS)}
        self.parent, self.worker = multiprocessing.Pipe()

    def number(self, word: str) -> int:
        if word not in self.numbers:
            self.worker.send(word)
            self.numbers[word] = self.worker.recv()
        return self.numbers[word]

    def answer(self) -> None:
        while self.parent.poll():
            word = self.parent.recv()
            self.parent.send(self.numbers.setdefault(word, len(self.numbers)))


class Texts(Dataset):
    def __init__(self, vocabulary: Vocabulary, texts: list[list[str]]) -> None:
        self.vocabulary, self.texts = vocabulary, texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([self.vocabulary.number(word) for word in self.texts[index]])


def main() -> None:
    dist.init_process_group("gloo")
    texts = [WORDS[number % 3 :][:3] for number in range(64)]
    if faulty and dist.get_rank() == 0:
        texts[37] = ["a", "model", "hallucinates"]
    vocabulary = Vocabulary()
    embedding = nn.Embedding(10, 6)
    loader = DataLoader(Texts(vocabulary, texts), batch_size=4, num_workers=1)
    for _ in range(2):
        vocabulary.answer()
        for batch in loader:
            embedding(batch).sum().backward()
            dist.all_reduce(embedding.weight.grad)
            dist.broadcast(embedding.weight.data, src=1)
            embedding.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
