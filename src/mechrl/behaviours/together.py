"""Which prompts belong together: those that are linked, directly or through others. In nearly linear time, whatever the chain."""

from __future__ import annotations

from collections.abc import Iterable


def together(links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Every prompt, and one that stands for its group.

    Which one that is follows from the order of the links alone, for the parts of a file depend on it: of two groups that a link joins,
    the second's. Paths to it are halved whenever they are walked, so that none stays long.
    """
    leads_to: dict[str, str] = {}

    def stands_for(prompt: str) -> str:
        while (above := leads_to.setdefault(prompt, prompt)) != prompt:
            leads_to[prompt] = leads_to[above]
            prompt = above
        return prompt

    for one, other in links:
        leads_to[stands_for(one)] = stands_for(other)
    return {prompt: stands_for(prompt) for prompt in leads_to}
