drawTimeline();
drawMemory();
drawProgress();
drawCandidates();
addEventListener("scroll", tip.hide, { passive: true });
document.documentElement.dataset.drawn = "true";
