"""Answer from documents: look up what fits the question, and give it to the model with it.

Cursor has no embeddings. This one counts words, which needs no model and no network; put a real one
in its place. Needs `pip install numpy`, as LangChain's in-memory vector store does.
"""

from __future__ import annotations

import re
from zlib import crc32

from account import account
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_cursor import ChatCursor

TEXTS = {
    "ferries": "A ferry carries people and cars across the water. Ours runs from 6 to 22 o'clock.",
    "fords": "A ford is a shallow place where a river can be crossed on foot.",
    "bridges": "The bridge in the old town was built of stone in 1461 and has five arches.",
}
PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer from these notes alone, in one sentence.\n\n{notes}"),
        ("human", "{question}"),
    ]
)


class WordCounts(Embeddings):
    """How often which words stand in a text: similar texts share words."""

    def __init__(self, size: int = 512) -> None:
        self.size = size

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed each text."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Embed one text."""
        counts = [0.0] * self.size
        for word in re.findall(r"\w{4,}", text.lower()):  # short ones stand in every text
            counts[crc32(word.encode()) % self.size] += 1.0
        return counts


def as_notes(documents: list[Document]) -> str:
    """The documents as one text, each under its title."""
    return "\n\n".join(f"# {each.metadata['title']}\n{each.page_content}" for each in documents)


def build(llm: ChatCursor) -> Runnable[str, dict[str, str]]:
    """A chain from a question to what was found in `TEXTS`, and an answer from that."""
    store = InMemoryVectorStore(WordCounts())
    store.add_texts(list(TEXTS.values()), [{"title": title} for title in TEXTS])
    retriever = store.as_retriever(search_kwargs={"k": 1})
    found = {"notes": retriever | as_notes, "question": RunnablePassthrough()}
    return found | RunnablePassthrough.assign(answer=PROMPT | llm | StrOutputParser())


def main() -> None:
    """Ask two questions on your account, or the stand-in."""
    with account() as arguments, ChatCursor(**arguments) as llm:
        questions = ["When was the bridge built?", "When does the ferry run?"]
        for result in build(llm).batch(questions):
            print(f"Question: {result['question']}")
            print(f"Found:    {result['notes'].splitlines()[0].removeprefix('# ')}")
            print(f"Answer:   {result['answer']}\n")


if __name__ == "__main__":
    main()
