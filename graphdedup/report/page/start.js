// Reads the report out of the page and draws it.

const report = JSON.parse(document.getElementById("data").textContent);
const parts = report.kind === "graphdedup.demo" ? demoPage(report) : footprintPage(report);
document.getElementById("page").replaceChildren(...parts);
drawCharts();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
document.documentElement.dataset.ready = "yes";
