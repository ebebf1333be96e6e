// Chat templates, within a budget: a template is the model's, and one that goes on for ever would take the worker along.

import { Environment, Interpreter, Template } from "@huggingface/jinja";

export { Template };

/** Nodes of a template that are evaluated, and numbers of its ranges, at most: those of real ones take some dozen for each message. */
const MOST_STEPS = 1_000_000;
/** Numbers that one `range` has at most, as in jinja2's sandbox. */
const LONGEST_RANGE = 100_000;

let steps = 0;

function count(more: number): void {
  steps += more;
  if (steps > MOST_STEPS)
    throw new Error(`it was not done after ${MOST_STEPS} steps; shorten its loops, or the conversation`);
}

/** `range` of templates; @huggingface/jinja gives all arguments that are left out an empty object behind them. */
function range(...given: unknown[]): number[] {
  const [first, second, step = 1] = given.filter((value) => typeof value === "number") as [number, number?, number?];
  const [start, stop] = second === undefined ? [0, first] : [first, second];
  if (step === 0) throw new Error("range() step must not be zero");
  const length = Math.max(0, Math.ceil((stop - start) / step));
  if (!(length <= LONGEST_RANGE))
    throw new Error(`a range has ${length} numbers, at most ${LONGEST_RANGE} are allowed; shorten it`);
  count(length);
  return Array.from({ length }, (_, place) => start + place * step);
}

const { prototype } = Interpreter;
const { evaluate, run } = prototype;

prototype.run = function (...given) {
  steps = 0;
  const known = new Environment();
  this.global.setVariable("range", known.set("range", range));
  return run.apply(this, given);
};

prototype.evaluate = function (...given) {
  count(1);
  return evaluate.apply(this, given);
};
