// SPDX-License-Identifier: Apache-2.0
// Airflow's UI keeps the reader's choice of colours in local storage, which its own pages and this one share. It runs
// before anything is painted.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function chosen() {
    try {
      return window.localStorage.getItem("theme");
    } catch {
      return null; // storage is blocked
    }
  }

  function apply() {
    const choice = chosen();
    const isDark = choice === "dark" || (choice !== "light" && dark.matches);
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
  }

  apply();
  dark.addEventListener("change", apply);
  window.addEventListener("storage", apply); // another document of Airflow's has changed it
})();
