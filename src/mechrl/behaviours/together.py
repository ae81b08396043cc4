"""Groups of prompts that are linked, directly or through others: union-find."""

from __future__ import annotations

from collections.abc import Iterable


def together(links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Maps every prompt to the representative of its group.

    The representative depends only on the order of the links, because the parts of a file depend on it: when a link joins two groups, the
    second's represents both. Paths are halved as they are walked.
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
