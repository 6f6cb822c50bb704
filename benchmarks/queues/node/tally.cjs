// What handlers do: count themselves, or note when they started (tally.py reads it). Node maps no files into
// memory, so a count is written once in each turn of the event loop.
const fs = require("node:fs");
const path = require("node:path");

const folder = process.env.BENCH_TALLY;
const notes = path.join(folder ?? ".", "notes");
const bytes = Buffer.alloc(8);
let file;
let total = 0n;
let isWriting = false;

exports.count = () => {
  total += 1n;
  if (isWriting) return;
  isWriting = true;
  setImmediate(write);
};

function write() {
  isWriting = false;
  file ??= fs.openSync(path.join(folder, `${process.pid}-0`), "w");
  bytes.writeBigUInt64LE(total);
  fs.writeSync(file, bytes, 0, 8, 0);
}

exports.note = (number) => {
  const at = BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e6));
  fs.appendFileSync(notes, `${number} ${at}\n`);
};

exports.countNotes = () => (fs.existsSync(notes) ? fs.readFileSync(notes, "utf8").split("\n").length - 1 : 0);
