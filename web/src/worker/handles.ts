// Integer handles by which Python names JavaScript objects.

import { EngineError } from "../wire/errors";

/** Integer handles for objects of one kind; an unknown handle is a use after close. */
export class Handles<T> {
  private readonly objects = new Map<number, T>();
  private next = 1;

  constructor(private readonly what: string) {}

  add(object: T): number {
    this.objects.set(this.next, object);
    return this.next++;
  }

  get(handle: number): T {
    const object = this.objects.get(handle);
    if (object === undefined)
      throw new EngineError("ClosedError", `${this.what} ${handle} was closed; load the model again`);
    return object;
  }

  take(handle: number): T | undefined {
    const object = this.objects.get(handle);
    this.objects.delete(handle);
    return object;
  }

  *all(): Iterable<T> {
    yield* this.objects.values();
  }
}
