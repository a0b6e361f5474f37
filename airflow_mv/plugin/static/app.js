// SPDX-License-Identifier: Apache-2.0
import { current } from "./address.js";
import { showCosts } from "./costs.js";
import { showList } from "./list.js";
import { showView } from "./view.js";

const page = document.getElementById("page");
const asked = current();
if (asked.view) showView(page, asked);
else if (asked.costs) showCosts(page, asked);
else showList(page, asked);
