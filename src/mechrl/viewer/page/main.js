// ---- it begins here -----------------------------------------------------------------------------------------------------------

readColours();
for (const circuit of circuits) panes.push(new Pane(circuit));
compare();
$("panes").classList.toggle("many", circuits.length > 2);
$("panes").append(...panes.map((pane) => pane.root));
startLegend();
startTheme();
startTabs();
startSearch();
if (comparable) showFilter();
for (const circuit of CIRCUITS) readNotes(circuit.notes_of_reader);
followLink();
addEventListener("hashchange", followLink);
