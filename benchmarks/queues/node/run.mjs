// A process of a queue for node: `node run.mjs QUEUE COMMAND …`, with the commands and answers of run.py. It is
// copied beside the queues' packages, so that it finds them.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import tally from "./tally.cjs";

const require = createRequire(import.meta.url);
const here = dirname(fileURLToPath(import.meta.url));
const address = process.env.BENCH_ADDRESS;
const CONCURRENCY = 10; // as many as Holdfast by default; theirs is 1
const WARM_UP = 20;
const AT_ONCE = 10_000;
const CALLS = 3;
const LATE = 10_000;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const now = () => BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e6));

const queues = {
  "graphile-worker": {
    command: [join(here, "node_modules/.bin/graphile-worker"), "-c", address, "-j", String(CONCURRENCY)],
    setup: async () => {
      const utils = await require("graphile-worker").makeWorkerUtils({ connectionString: address });
      await utils.migrate();
      await utils.release();
    },
    producer: async () => {
      const utils = await require("graphile-worker").makeWorkerUtils({ connectionString: address });
      return {
        enqueue: (number) => utils.addJob("noop", { number }),
        note: (number) => utils.addJob("note", { number }),
        // Newer versions have addJobs; this is what the documentation says for the others, too.
        enqueueMany: (numbers) =>
          utils.withPgClient((client) =>
            client.query(
              `select count(*) from graphile_worker.add_jobs(array(
                 select json_populate_record(null::graphile_worker.job_spec,
                   json_build_object('identifier', 'noop', 'payload', json_build_object('number', number)))
                 from unnest($1::int[]) as number))`,
              [numbers],
            ),
          ),
        end: () => utils.release(),
      };
    },
  },
  "pg-boss": {
    setup: async () => {
      const boss = await startBoss();
      await boss.createQueue("noop");
      await boss.createQueue("note");
      await stop(boss);
    },
    producer: async () => {
      const boss = await startBoss();
      const isOld = boss.insert.length < 2 && Number(versionOf("pg-boss").split(".")[0]) < 11;
      return {
        enqueue: (number) => boss.send("noop", { number }),
        note: (number) => boss.send("note", { number }),
        enqueueMany: (numbers) =>
          isOld
            ? boss.insert(numbers.map((number) => ({ name: "noop", data: { number } })))
            : boss.insert("noop", numbers.map((number) => ({ data: { number } }))),
        end: () => stop(boss),
      };
    },
    work: async () => {
      const boss = await startBoss();
      // Its polling interval can't be shorter than half a second; its default batch is 1 job.
      const options = { batchSize: 100, pollingIntervalSeconds: 0.5 };
      await boss.work("noop", options, async (jobs) => jobs.forEach(() => tally.count()));
      await boss.work("note", options, async (jobs) => jobs.forEach((job) => tally.note(job.data.number)));
    },
  },
};

async function startBoss() {
  const module = require("pg-boss");
  const boss = new (module.PgBoss ?? module)(address);
  boss.on("error", console.error);
  await boss.start();
  return boss;
}

const stop = (boss) => boss.stop({ graceful: false, close: true, wait: true });

const versionOf = (name) =>
  JSON.parse(readFileSync(join(here, "node_modules", name, "package.json"), "utf8")).version;

async function durability() {
  const { Client } = require("pg");
  const client = new Client({ connectionString: address });
  await client.connect();
  const { rows } = await client.query(
    "select 'fsync=' || current_setting('fsync') || ', synchronous_commit=' ||" +
      " current_setting('synchronous_commit') as settings",
  );
  await client.end();
  return rows[0].settings;
}

async function timed(enqueue, count) {
  const began = performance.now();
  for (let number = 0; number < count; number++) await enqueue(number);
  return (performance.now() - began) / 1000;
}

const range = (first, end) => Array.from({ length: end - first }, (_, i) => first + i);

const commands = {
  one: async (producer, count) => {
    await timed(producer.enqueue, WARM_UP);
    return { seconds: await timed(producer.enqueue, count) };
  },
  bulk: async (producer, count) => {
    await producer.enqueue(0);
    const times = [];
    for (let call = 0; call < CALLS; call++) {
      const began = performance.now();
      await producer.enqueueMany(range(0, count));
      times.push(performance.now() - began);
    }
    return { seconds: times.sort((a, b) => a - b)[(CALLS - 1) / 2] / 1000 };
  },
  fill: async (producer, count) => {
    for (let first = 0; first < count; first += AT_ONCE) {
      await producer.enqueueMany(range(first, Math.min(first + AT_ONCE, count)));
    }
    return {};
  },
  pickups: async (producer, count, seconds) => {
    const called = [];
    const ends = performance.now() + 1000 * seconds;
    while (called.length < count && performance.now() < ends) {
      await sleep(5 + 25 * Math.random());
      called.push(Number(now()));
      await producer.note(called.length - 1);
      while (tally.countNotes() < called.length && performance.now() < ends + LATE) await sleep(5);
    }
    return { called };
  },
};

const [name, command, ...numbers] = process.argv.slice(2);
const queue = queues[name];
if (process.env.BENCH_NEW) await queue.setup();
if (command === "about") {
  console.log(JSON.stringify({ version: versionOf(name), durability: await durability() }));
} else if (command === "work") {
  if (queue.command) {
    const [program, ...rest] = queue.command;
    const child = spawn(program, rest, { stdio: "inherit", cwd: here });
    for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => child.kill(signal));
    child.on("exit", (code) => process.exit(code ?? 1));
  } else {
    await queue.work();
  }
} else {
  const producer = await queue.producer();
  console.log(JSON.stringify(await commands[command](producer, ...numbers.map(Number))));
  await producer.end();
  process.exit(0);
}
