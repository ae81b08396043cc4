"""One self-contained HTML page: no script, and no font or picture from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from mechrl.errors import MechRLError
from mechrl.report.figures import Figure
from mechrl.report.tables import Table, dumps


@dataclass(frozen=True)
class Page:
    title: str
    lead: str
    facts: Sequence[tuple[str, str]]
    tables: Sequence[Table]
    figures: Sequence[Figure]
    done: int
    failed: Sequence[tuple[str, str]]  # cell and reason
    total: int
    command: str
    findings: Sequence[str] = ()
    headline: str = ""  # the name of the figure beside them


def render(page: Page) -> str:
    try:
        from jinja2 import Environment
    except ImportError as exc:
        raise MechRLError("the report needs matplotlib and jinja2: pip install 'mechrl[report]'") from exc

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_TEMPLATE).render(page=page, uri=_uri, dumps=dumps)


def _uri(kind: str, content: str | bytes) -> str:
    raw = content.encode() if isinstance(content, str) else content
    return f"data:{kind};base64,{base64.b64encode(raw).decode()}"


_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ page.title }}</title>
<style>
:root { color-scheme: light dark; --ink: #1b1b1b; --soft: #5c5c5c; --line: #dcdcdc; --ground: #fcfcfb; --card: #ffffff; --stripe: #f5f6f7;
  --accent: #0072b2; --bad: #a33b00; --badground: #fdf0e8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e9e9e7; --soft: #a9a9a6; --line: #3b3d40; --ground: #17181a; --card: #1f2123; --stripe: #26282b; --accent: #56b4e9;
    --bad: #ffb38a; --badground: #3a2519; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 24px 20px 80px; }
h1 { font-size: 26px; line-height: 1.25; margin: 8px 0 4px; }
h2 { font-size: 18px; margin: 0 0 6px; }
.lead, .caption, .note { color: var(--soft); }
.lead { max-width: 78ch; }
.caption { max-width: 100ch; margin: 0 0 10px; font-size: 14px; }
.note { font-size: 13px; margin: 6px 0 0; }
a { color: var(--accent); }
code { font: 12.5px/1.4 ui-monospace, monospace; background: var(--stripe); padding: 1px 5px; border-radius: 4px; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 14px 0; font-size: 14px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
nav ul { columns: 2; padding-left: 18px; font-size: 14px; margin: 8px 0 0; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px 18px; margin: 18px 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: 4px 9px; text-align: right; vertical-align: top; }
td { white-space: nowrap; }
th { font-weight: 600; vertical-align: bottom; line-height: 1.25; }
th.text, td.text { text-align: left; }
td.long { white-space: normal; min-width: 22ch; }
td.text:last-child:not(.long) { white-space: normal; min-width: 13ch; }
thead tr:last-child th { border-bottom: 1.5px solid var(--ink); }
thead th.group { text-align: center; border-bottom: 1px solid var(--line); color: var(--soft); font-weight: 500; }
tbody tr:nth-child(even) { background: var(--stripe); }
tbody td.first { font-weight: 500; }
.sd { color: var(--soft); }
.snug { font-size: 12.5px; } .snug th, .snug td { padding: 4px 4.5px; } .dense .sd { display: block; font-size: 11.5px; }
.denser { font-size: 11.5px; } .denser th, .denser td { padding: 4px 3.5px; } .denser .sd { font-size: 10.5px; }
.denser th { font-size: 10.5px; hyphens: none; }
.findings { font-size: 16.5px; padding-left: 24px; max-width: 84ch; } .findings li { margin: 7px 0; }
figure { margin: 0; }
figure img { display: block; width: 100%; max-width: 980px; height: auto; margin: 0 auto; background: #fff; border-radius: 6px;
  padding: 6px; }
.files { font-size: 13px; color: var(--soft); margin: 10px 0 0; }
.state { border-left: 4px solid var(--accent); padding: 6px 12px; background: var(--stripe); border-radius: 0 6px 6px 0; }
.failed { border-color: var(--bad); background: var(--badground); color: var(--bad); }
@media (max-width: 640px) { nav ul { columns: 1; } main { padding: 14px 10px 60px; } section { padding: 12px; } }
@media print { section { break-inside: avoid; border: 0; } nav { display: none; } }
</style>
</head>
<body>
<main>
<h1>{{ page.title }}</h1>
<p class="lead">{{ page.lead }}</p>
{% if page.findings %}
<section id="findings">
<h2>What was found</h2>
<ol class="findings">
{% for sentence in page.findings %}<li>{{ sentence }}</li>
{% endfor %}
</ol>
{% for figure in page.figures if figure.name == page.headline %}
<figure><img src="{{ uri('image/svg+xml', figure.svg) }}" alt="{{ figure.alt }}"></figure>
<p class="caption"><a href="#{{ figure.name }}">{{ figure.title }}</a></p>
{% endfor %}
</section>
{% endif %}
{% set left = page.total - page.done - page.failed | length %}
<p class="state{% if page.failed %} failed{% endif %}">
{{ page.done }} of {{ page.total }} cells done{% if left %}, {{ left }} to go{% endif %}{% if page.failed %}, {{ page.failed | length }}
failed: <a href="#failed">which, and why</a>{% endif %}.</p>
<nav><ul>
{% for item in page.figures %}<li><a href="#{{ item.name }}">{{ item.title }}</a></li>
{% endfor %}
{% for item in page.tables %}<li><a href="#{{ item.name }}">{{ item.title }}</a></li>
{% endfor %}
<li><a href="#provenance">Provenance</a></li>
</ul></nav>
{% for figure in page.figures %}
<section id="{{ figure.name }}">
<h2>{{ figure.title }}</h2>
<p class="caption">{{ figure.caption }}</p>
<figure><img src="{{ uri('image/svg+xml', figure.svg) }}" alt="{{ figure.alt }}"></figure>
<p class="files"><code>{{ figure.command }}</code></p>
</section>
{% endfor %}
{% for table in page.tables %}
<section id="{{ table.name }}">
<h2>{{ table.title }}</h2>
<p class="caption">{{ table.caption }}</p>
{% set n = table.columns | length %}
<div class="scroll"><table class="{{ 'snug' if n > 9 }}{{ ' dense' if n > 10 }}{{ ' denser' if n > 12 }}">
<thead>
{% if table.groups() | length > 1 %}
<tr>{% for name, span in table.groups() %}<th{% if name %} class="group"{% endif %} colspan="{{ span }}">{{ name }}</th>{% endfor %}</tr>
{% endif %}
<tr>{% for c in table.columns %}<th{% if c.text %} class="text"{% endif %}>{{ c.name }}</th>{% endfor %}</tr>
</thead>
<tbody>
{% for row in table.texts() %}
<tr>{% for cell in row %}{% set c = table.columns[loop.index0] %}
<td class="{{ 'text' if c.text }}{{ ' long' if cell | length > 34 }}{{ ' first' if loop.first }}">
{%- set mean, rule, sd = cell.partition(' ± ') -%}
{{ mean }}{% if rule and not c.text %}<span class="sd"> ± {{ sd }}</span>{% else %}{{ rule }}{{ sd }}{% endif %}</td>
{% endfor %}</tr>
{% else %}
<tr><td class="text" colspan="{{ table.columns | length }}">Nothing done yet.</td></tr>
{% endfor %}
</tbody></table></div>
{% for note in table.notes %}<p class="note">{{ note }}</p>
{% endfor %}
<p class="files"><a download="{{ table.name }}.csv" href="{{ uri('text/csv', table.to_csv()) }}">CSV</a> ·
<a download="{{ table.name }}.json" href="{{ uri('application/json', dumps(table)) }}">JSON</a> · <code>{{ table.command }}</code></p>
</section>
{% endfor %}
{% if page.failed %}
<section id="failed">
<h2>Failed cells</h2>
<div class="scroll"><table>
<thead><tr><th class="text">cell</th><th class="text">why</th></tr></thead>
<tbody>
{% for cell, reason in page.failed %}<tr><td class="text first">{{ cell }}</td><td class="text long">{{ reason }}</td></tr>
{% endfor %}
</tbody></table></div>
</section>
{% endif %}
<section id="provenance">
<h2>Provenance</h2>
<dl>
{% for name, value in page.facts %}
<dt>{{ name }}</dt><dd>{{ value }}</dd>
{% endfor %}
<dt>command</dt><dd><code>{{ page.command }}</code></dd>
</dl>
</section>
</main>
</body>
</html>
"""
