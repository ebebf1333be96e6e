// Repositories of a hub, opened at one commit: their files have addresses there, which never change.

import { EngineError } from "../errors";

interface Opened {
  /** For messages. */
  name: string;
  token: string | null;
  commit: string;
  files: Map<string, Listed>;
}

/** A file as the hub lists it; null for what it does not tell. */
interface Listed {
  size: number | null;
  sha256: string | null;
}

/** What the hub answers of a repository, as far as it is read here. */
interface Answer {
  sha?: unknown;
  siblings?: { rfilename?: unknown; size?: unknown; lfs?: { sha256?: unknown } }[];
}

/** By the address of their files, which ends in a slash. */
const repositories = new Map<string, Opened>();

/**
 * Ask a hub for a repository's commit and files; the address of the latter, as a model folder's. A token that Python
 * leaves out is undefined here.
 */
export async function openRepository(
  id: string,
  hub: string,
  revision: string,
  given?: string | null,
): Promise<string> {
  const token = given ?? null;
  const name = `${id} at ${revision}`;
  const url = `${hub}/api/models/${id}/revision/${encodeURIComponent(revision)}?blobs=true`;
  let response: Response;
  try {
    response = await fetch(url, { headers: bearer(token) });
  } catch (error) {
    const remedy = "check the address, the network and that the hub allows this page (CORS)";
    throw new EngineError("ModelFileError", `the hub ${hub} cannot be asked for ${name} (${String(error)}); ${remedy}`);
  }
  if (!response.ok) throw new EngineError("ModelFileError", `${hub}: ${reason(response, name, token)}`);
  const { sha, siblings } = (await response.json().catch(() => ({}))) as Answer;
  if (typeof sha !== "string" || !/^[0-9a-f]{7,64}$/.test(sha) || !Array.isArray(siblings)) {
    throw new EngineError("ModelFileError", `${url} is no answer of a hub about a repository; check the hub's address`);
  }
  const files = new Map<string, Listed>();
  for (const { rfilename, size, lfs } of siblings) {
    if (typeof rfilename !== "string") continue;
    const digest = lfs?.sha256;
    files.set(rfilename, {
      size: typeof size === "number" ? size : null,
      sha256: typeof digest === "string" ? digest : null,
    });
  }
  const folder = `${hub}/${id}/resolve/${sha}/`;
  repositories.set(folder, { name, token, commit: sha, files });
  return folder;
}

function bearer(token: string | null): Record<string, string> {
  return token === null ? {} : { Authorization: `Bearer ${token}` };
}

function repositoryOf(url: string): [Opened, string] | null {
  for (const [folder, opened] of repositories) if (url.startsWith(folder)) return [opened, url.slice(folder.length)];
  return null;
}

/** The headers that a request for a file takes; empty unless it is a repository's. */
export function authorization(url: string): Record<string, string> {
  return bearer(repositoryOf(url)?.[0].token ?? null);
}

/** The names of an opened repository's files; null for any other folder. */
export function repositoryListing(folder: string): string[] | null {
  const opened = repositories.get(folder);
  return opened ? [...opened.files.keys()] : null;
}

/** Whether a file is in its repository; null where no repository is told. */
export function inRepository(url: string): boolean | null {
  const found = repositoryOf(url);
  return found && found[0].files.has(found[1]);
}

/** Size and validator of a repository's file, as far as the hub listed them. */
export function listedIdentity(url: string): { size: number | null; validator: string } | null {
  const found = repositoryOf(url);
  if (!found) return null;
  const listed = found[0].files.get(found[1]);
  const digest = listed?.sha256;
  return { size: listed?.size ?? null, validator: digest ? `sha256 ${digest}` : `commit ${found[0].commit}` };
}

/** Why a hub refuses a file of a repository; null for other files and other statuses. */
export function hubRefusal(url: string, response: Response): string | null {
  const found = repositoryOf(url);
  return found && [401, 403, 404].includes(response.status) ? reason(response, found[0].name, found[0].token) : null;
}

/** What a refusal means and what to do. A hub does not tell those without access whether there is a repository. */
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
