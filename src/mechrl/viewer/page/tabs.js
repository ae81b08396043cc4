// ---- tabs ---------------------------------------------------------------------------------------------------------------------

const TABS = { component: showComponent, prompts: showPrompts, about: showAbout };
let openNow = "component";

function openTab(name) {
  openNow = name;
  for (const tab of Object.keys(TABS)) {
    const button = $(`tab-${tab}`);
    button.setAttribute("aria-selected", String(tab === name));
    button.tabIndex = tab === name ? 0 : -1;
    $(tab).hidden = tab !== name;
  }
}

const showDetails = () => {
  TABS[openNow]();
  for (const pane of panes) pane.showExample();
  syncLink();
};

function startTabs() {
  const names = Object.keys(TABS);
  names.forEach((name, i) => {
    const button = $(`tab-${name}`);
    button.addEventListener("click", () => { openTab(name); showDetails(); });
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = names[(i + step + names.length) % names.length];
      openTab(next);
      showDetails();
      $(`tab-${next}`).focus();
    });
  });
}
