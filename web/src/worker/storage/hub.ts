// Repositories of a hub, opened at one commit: their files have addresses there, which never change. The hub's
// description of a repository and the small files are kept after a load, so that the next one asks the hub for nothing.

import { EngineError } from "../../wire/errors";
import type { HubRepository } from "../../wire/protocol";
import { entry, keep as keepIn, kept as keptIn } from "./kept_files";
import { Body, request, transient } from "./network";
import { type Listed, readWhole, reportedSize } from "./whole";

interface Opened {
  /** For messages. */
  name: string;
  token: string | null;
  commit: string;
  files: Map<string, Listed>;
  /** Whether its small files may be kept, and read from storage. */
  keep: boolean;
  /** The hub's description of it, and the address under which that is kept. */
  answer: { address: string; text: string };
}

/** The fields of the hub's answer about a repository that are read here. */
interface Answer {
  sha?: unknown;
  siblings?: { rfilename?: unknown; size?: unknown; lfs?: { sha256?: unknown } }[];
}

/** By the address of their files, which ends in a slash. */
const repositories = new Map<string, Opened>();

/** The cache that they are kept in, by their addresses. */
const KEPT = "capstan-repositories";
/** The longest answer about a repository. */
const LARGEST_ANSWER = 64 << 20;

/** Repositories that are opened ahead, by their request. */
const expected = new Map<string, Promise<string>>();

/** Open a repository as the load of it will; that takes this answer. */
export function expectRepository({ repository, hub, revision, token }: HubRepository): Promise<string> {
  const asked = [repositoryName(repository), hub.replace(/\/+$/, ""), revision ?? "main", true, token] as const;
  const opened = openNow(...asked);
  expected.set(JSON.stringify(asked), opened);
  return opened;
}

/** The repository of an id, which may name a file in it: OWNER/NAME of OWNER/NAME:FILE.gguf. */
function repositoryName(id: string): string {
  return id.split(":", 1)[0]!;
}

/** `openNow`, or what came of it ahead. */
export function openRepository(
  id: string,
  hub: string,
  revision: string,
  keep: boolean,
  token?: string | null,
): Promise<string> {
  const key = JSON.stringify([id, hub, revision, keep, token ?? null]);
  const opened = expected.get(key) ?? openNow(id, hub, revision, keep, token);
  expected.delete(key);
  return opened;
}

/**
 * The address of a repository's files at the commit that its revision is, as a model folder's: the commit of the last
 * load if `keep` lets that be looked up and there was one, else the hub is asked. A token that Python leaves out is
 * undefined here.
 */
async function openNow(
  id: string,
  hub: string,
  revision: string,
  keep: boolean,
  given?: string | null,
): Promise<string> {
  const token = given ?? null;
  const name = `${id} at ${revision}`;
  const noted = `${hub}/${id}/revision/${encodeURIComponent(revision)}`;
  const url = `${hub}/api/models/${id}/revision/${encodeURIComponent(revision)}?blobs=true`;
  const last = keep ? await keptIn(KEPT, noted) : null;
  const text = last ? await last.text() : await asked(url, hub, name, token);
  const { sha, siblings } = parsed(text);
  if (typeof sha !== "string" || !/^[0-9a-f]{7,64}$/.test(sha) || !Array.isArray(siblings)) {
    throw new EngineError("ModelFileError", `${url} is no answer of a hub about a repository; check the hub's address`);
  }
  const files = new Map<string, Listed>();
  for (const { rfilename, size, lfs } of siblings) {
    if (typeof rfilename !== "string") continue;
    const digest = lfs?.sha256;
    files.set(rfilename, {
      size: size == null ? null : reportedSize(`${name}, ${rfilename}`, size),
      sha256: typeof digest === "string" ? digest : null,
    });
  }
  const folder = `${hub}/${id}/resolve/${sha}/`;
  repositories.set(folder, { name, token, commit: sha, files, keep, answer: { address: noted, text } });
  return folder;
}

/** Asks the hub about a repository; returns its answer. */
async function asked(url: string, hub: string, name: string, token: string | null): Promise<string> {
  const what = `the hub ${hub} cannot be asked for ${name}`;
  const response = await request(url, { headers: bearer(token) }, what);
  const passing = transient(response, url);
  if (passing) throw passing;
  if (!response.ok) throw new EngineError("ModelFileError", `${hub}: ${reason(response, name, token)}`);
  const told = `the answer of the hub ${hub} for ${name}`;
  return new TextDecoder().decode(await readWhole(told, new Body(response.body!), { most: LARGEST_ANSWER }));
}

function parsed(text: string): Answer {
  try {
    return (JSON.parse(text) ?? {}) as Answer;
  } catch {
    return {};
  }
}

/** A small file of a repository as it was kept; null for any other file. */
export async function keptFile(url: string): Promise<Response | null> {
  return repositoryOf(url)?.[0].keep ? keptIn(KEPT, url) : null;
}

/** Whether a file is one of those that are kept. */
export async function isKept(url: string): Promise<boolean> {
  return !!repositoryOf(url)?.[0].keep && (await entry(KEPT, url)) !== null;
}

/** Keep a file that was read whole, if it is a small one of a repository. */
export async function keepFile(url: string, content: Uint8Array<ArrayBuffer>): Promise<void> {
  if (repositoryOf(url)?.[0].keep) await keepIn(KEPT, url, content);
}

/** Let the next load of an opened repository take the commit of this one, which has succeeded. */
export async function keepRepository(folder: string): Promise<void> {
  const opened = repositories.get(folder);
  if (!opened?.keep) return;
  const { address, text } = opened.answer;
  // The commit names itself too.
  for (const name of [address, `${address.slice(0, address.lastIndexOf("/"))}/${opened.commit}`])
    await keepIn(KEPT, name, new TextEncoder().encode(text));
}

/**
 * Forget what is kept of the repositories that have, or are, one of these addresses (a JSON array); null is all.
 * Returns the number of bytes freed.
 */
export async function forgetRepositories(addresses?: string | null): Promise<number> {
  const which = addresses ? (JSON.parse(addresses) as string[]).map(withSlash) : null;
  let freed = 0;
  try {
    const cache = await caches.open(KEPT);
    for (const request of await cache.keys()) {
      const repository = withSlash(request.url.split(/\/(?:resolve|revision)\//)[0]!);
      if (which && !which.some((name) => name.startsWith(repository) || name === withSlash(request.url))) continue;
      freed += Number((await cache.match(request))?.headers.get("Content-Length") ?? 0);
      await cache.delete(request);
    }
  } catch {
    // There is no Cache API.
  }
  return freed;
}

function withSlash(address: string): string {
  return address.replace(/\/?$/, "/");
}

function bearer(token: string | null): Record<string, string> {
  return token === null ? {} : { Authorization: `Bearer ${token}` };
}

function repositoryOf(url: string): [Opened, string] | null {
  for (const [folder, opened] of repositories)
    if (url.startsWith(folder)) return [opened, decodeURIComponent(url.slice(folder.length))];
  return null;
}

/** The headers that a request for a file takes; empty unless it is a repository's. */
export function authorization(url: string): Record<string, string> {
  return bearer(repositoryOf(url)?.[0].token ?? null);
}

/**
 * The sizes of an opened repository's files by their names, null if the hub reports none; null for any other folder.
 */
export function repositoryListing(folder: string): Record<string, number | null> | null {
  const opened = repositories.get(folder);
  return opened ? Object.fromEntries([...opened.files].map(([name, { size }]) => [name, size])) : null;
}

/** Whether a file is in its repository; null if the repository is unknown. */
export function inRepository(url: string): boolean | null {
  const found = repositoryOf(url);
  return found && found[0].files.has(found[1]);
}

/** Size and SHA-256 of a repository's file, as far as the hub listed them; of any other file neither. */
export function listed(url: string): Listed {
  const found = repositoryOf(url);
  return found?.[0].files.get(found[1]) ?? { size: null, sha256: null };
}

/** Size and validator of a repository's file, as far as the hub listed them. */
export function listedIdentity(url: string): { size: number | null; validator: string } | null {
  const found = repositoryOf(url);
  if (!found) return null;
  const { size, sha256 } = listed(url);
  return { size, validator: sha256 ? `sha256 ${sha256}` : `commit ${found[0].commit}` };
}

/** Why a hub refuses a file of a repository; null for other files and other statuses. */
export function hubRefusal(url: string, response: Response): string | null {
  const found = repositoryOf(url);
  return found && [401, 403, 404].includes(response.status) ? reason(response, found[0].name, found[0].token) : null;
}

/**
 * The meaning of a refusal, with the remedy. A hub does not reveal to users without access whether a repository exists.
 */
function reason(response: Response, name: string, token: string | null): string {
  const { status } = response;
  const code = response.headers.get("X-Error-Code");
  const http = `(HTTP ${status}${code ? `, ${code}` : ""})`;
  if (status === 401 && code === "GatedRepo")
    return `${name} is gated ${http}; accept its terms at the hub and give a token of that account`;
  if (status === 401 && token !== null) return `the token is not valid for ${name} ${http}; give another one`;
  if (status === 401)
    return `there is no ${name}, or it is private ${http}; check the id, or give a token of an account that may read it`;
  if (status === 403)
    return `the token's account has no access to ${name} ${http}; ask for access at the hub, or give a token that may read it`;
  if (status === 404 && code === "RevisionNotFound")
    return `${name} does not exist, the repository does ${http}; check the revision`;
  if (status === 404 && code === "EntryNotFound") return `${name} has no such file ${http}; take another revision`;
  if (status === 404) return `there is no ${name} ${http}; check the id and the revision`;
  return `the hub does not answer for ${name} ${http}; try again later`;
}
