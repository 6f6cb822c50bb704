// What a page does beyond plain HTML: it stays up to date, copies, and selects. Every page works without it.
import { startCopying } from "./copy.js";
import { startLive, refreshWith } from "./live.js";
import { startQuietForms } from "./quiet-forms.js";
import { startSelection } from "./selection.js";
import { startTimes } from "./times.js";

startTimes();
startCopying();
startSelection();
startQuietForms(refreshWith);
startLive();
