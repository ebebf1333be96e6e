// Writes zod.json: schemas as `z.toJSONSchema` writes them, each with values that zod takes for it.
//
//     node tests/schemas/zod_schemas.mjs

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import * as z from "zod";

const { version } = JSON.parse(readFileSync(createRequire(import.meta.url).resolve("zod/package.json"), "utf8"));
const schemas = {};

/** A schema under its name, values that fit, and what `z.toJSONSchema` is given. */
function add(name, schema, values, options = {}) {
  if (name in schemas) throw new Error(`${name} is there already`);
  for (const value of options.unread ? [] : values) {
    const parsed = schema.safeParse(value);
    if (!parsed.success) throw new Error(`${name}: ${JSON.stringify(value)}: ${parsed.error.message}`);
  }
  const { unread: _, ...given } = options;
  schemas[name] = { target: given.target ?? "draft-2020-12", schema: z.toJSONSchema(schema, given), values };
}
const INPUT = { io: "input" };
const ANY = { unrepresentable: "any" };
const UUID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";

// Strings.
add("string", z.string(), ["", 'Hé said "no"\n']);
add("string min max", z.string().min(2).max(20), ["Ada", "Zoë"]);
add("string length", z.string().length(5), ["abcde"]);
add("string long", z.string().max(5000), ["A long story."]);
add("string regex", z.string().regex(/^[A-Z]{2}-\d{3}$/), ["AB-123"]);
add("string regex inside", z.string().regex(/\d{3}/), ["call 112 now", "999"]);
add(
  "string regex length",
  z
    .string()
    .min(3)
    .max(16)
    .regex(/^[a-z0-9_-]+$/),
  ["ada_lovelace"],
);
add("string password", z.string().min(8).max(64).regex(/[A-Z]/).regex(/[a-z]/).regex(/\d/), ["Passw0rd12"]);
add("string lookahead", z.string().regex(/^(?=.*\d)(?=.*[a-z])(?!.*\s).{6,12}$/), ["secret99"]);
add("string word boundary", z.string().regex(/\bcat\b/), ["a cat sat"]);
add("string not start", z.string().regex(/^(?!admin$)[a-z]{3,10}$/), ["administer", "ada"]);
add("string starts with", z.string().startsWith("https://"), ["https://example.com/a b"]);
add("string ends with", z.string().endsWith(".png"), ["picture 1.png"]);
add("string includes", z.string().includes("@"), ["me@home"]);
add("string starts ends", z.string().startsWith("ID-").endsWith("-X").max(20), ["ID-42-X"]);
add("string lowercase", z.string().lowercase(), ["abc 1é"]);
add("string uppercase", z.string().uppercase().max(4), ["EUR"]);
add("email", z.email(), ["ada.lovelace@example.com", "o'neil+x@mail.example.org"]);
add("email length", z.email().min(6).max(60), ["ada@example.com"]);
add("email html5", z.email({ pattern: z.regexes.html5Email }), ["ada@localhost"]);
add("email unicode", z.email({ pattern: z.regexes.unicodeEmail }), ["zoë@example.com"]);
add("email rfc5322", z.email({ pattern: z.regexes.rfc5322Email }), ["ada@example.com"]);
add("uuid", z.uuid(), [UUID]);
add("uuid v4", z.uuidv4(), [UUID]);
add("guid", z.guid(), [UUID.toUpperCase()]);
add("url", z.url(), ["https://example.com/a?b=c#d", "mailto:ada@example.com"]);
add("url http", z.httpUrl(), ["http://example.com:8080/x/y.html"]);
add("url length", z.url().max(200), ["https://example.com/"]);
add("url protocol", z.url({ protocol: /^https$/, hostname: /example\.com$/ }), ["https://api.example.com/v1"]);
add("emoji", z.emoji(), ["🙂", "👩‍🚀"]);
add("base64", z.base64(), ["aGVsbG8=", ""]);
add("base64url", z.base64url(), ["aGVsbG8"]);
add("nanoid", z.nanoid(), ["V1StGXR8_Z5jdHi6B-myT"]);
add("cuid2", z.cuid2(), ["tz4a98xxat96iws9zmbrgj3a"]);
add("ulid", z.ulid(), ["01ARZ3NDEKTSV4RRFFQ69G5FAV"]);
add("ipv4", z.ipv4(), ["192.168.0.1"]);
add("ipv6", z.ipv6(), ["2001:db8::1", "::1"]);
add("cidr v4", z.cidrv4(), ["10.0.0.0/8"]);
add("cidr v6", z.cidrv6(), ["2001:db8::/32"]);
add("mac", z.mac(), ["00:1a:2b:3c:4d:5e"]);
add("e164", z.e164(), ["+14155552671"]);
add("jwt", z.jwt(), [], { unread: true });
add("hostname", z.hostname(), ["www.example.com"]);
add("iso date", z.iso.date(), ["2024-02-29", "1999-12-31"]);
add("iso time", z.iso.time(), ["12:30", "12:30:45.123"]);
add("iso datetime", z.iso.datetime(), ["2024-02-29T12:30:00Z"]);
add("iso datetime offset", z.iso.datetime({ offset: true, precision: 3 }), ["2024-05-01T12:30:00.250+02:00"]);
add("iso datetime local", z.iso.datetime({ local: true }), ["2024-05-01T12:30:00"]);
add("iso duration", z.iso.duration(), ["P3Y6M4DT12H30M5S", "PT20M", "P2W"]);
add("template literal", z.templateLiteral([z.number(), z.enum(["px", "em", "rem"])]), ["12px", "1.5em"]);
add("string format", z.stringFormat("hex-color", /^#[0-9a-f]{6}$/), ["#ff8800"]);
add("stringbool", z.stringbool(), ["true", "no"], INPUT);
add("file", z.file().mime("image/png").max(5000), [], { unread: true });

// Numbers.
add("number", z.number(), [1.5, -3, 1e21]);
add("number bounds", z.number().min(-1.5).max(99.99), [0, 12.25]);
add("number exclusive", z.number().gt(0).lt(1), [0.5]);
add("int", z.int(), [42, -7]);
add("int32", z.int32(), [-2147483648]);
add("float32", z.float32(), [3.25]);
add("float64", z.float64(), [-12345.678]);
add("int bounds", z.int().min(1).max(120), [36]);
add("number positive", z.number().positive(), [0.001]);
add("number multiple", z.number().multipleOf(5), [0, 15]);
add("int multiple bounds", z.int().min(0).max(100).multipleOf(5), [0, 55, 100]);
add("price", z.number().nonnegative().max(1000).multipleOf(0.01), [19.99, 0.5, 1000]);
add("quarter", z.number().min(-2).max(2).multipleOf(0.25), [0.75, -1.5]);
add("two multiples", z.int().multipleOf(4).multipleOf(6).min(1), [12, 24]);

add("openapi bounds", z.object({ n: z.number().gt(0).lt(10.5), i: z.int().gte(3).lt(8) }), [{ n: 0.25, i: 3 }], {
  target: "openapi-3.0",
});

// Literals and enums.
add("boolean null", z.tuple([z.boolean(), z.null()]), [[true, null]]);
add("any unknown", z.object({ a: z.any(), b: z.unknown() }), [{ a: [1, { x: null }], b: "y" }]);
add("literals", z.literal(["on", 1, null, true]), ["on", 1, null, true]);
add("enum", z.enum(["red", "green", "blue"]), ["green"]);
add("enum native", z.enum({ Low: 0, High: 10 }), [10]);
add("enum mixed", z.enum({ A: "a", B: 2 }).exclude(["A"]), [2]);

// Arrays and tuples.
add("array", z.array(z.string()).min(1).max(3), [["a", "b"]]);
add("array nonempty", z.array(z.array(z.number()).length(2)).nonempty(), [
  [
    [1, 2],
    [3.5, 4],
  ],
]);
add("tuple", z.tuple([z.string(), z.number(), z.boolean()]), [["a", 1, true]]);
add("tuple rest", z.tuple([z.string()], z.int()), [["a"], ["a", 1, 2]]);
add("tuple optional", z.tuple([z.string(), z.number().optional()]), [["a"], ["a", 2]]);
add("tuple draft 7", z.tuple([z.string(), z.int()], z.boolean()), [["a", 1, true]], { target: "draft-07" });
add("tuple openapi", z.tuple([z.string(), z.int()]), [["a", 1]], { target: "openapi-3.0" });
add("set of enum", z.set(z.enum(["a", "b"])), [], { ...ANY, unread: true });

// Objects.
const Address = z.object({
  street: z.string(),
  city: z.string(),
  zip: z
    .string()
    .regex(/^\d{5}$/)
    .optional(),
});
add("object optional", z.object({ a: z.string().optional(), b: z.int().nullable(), c: z.string().nullish() }), [
  { b: null },
  { a: "x", b: 3, c: null },
]);
add(
  "object defaults",
  z.object({
    size: z.int().default(10),
    tags: z.array(z.string()).prefault([]),
    mode: z.enum(["a", "b"]).catch("a"),
    at: z.string().readonly(),
    id: z.string().brand("Id"),
  }),
  [{ size: 1, tags: [], mode: "b", at: "x", id: "y" }],
);
add(
  "object defaults input",
  z.object({ size: z.int().default(10), tags: z.array(z.string()).prefault([]), when: z.coerce.number() }),
  [{ when: 3 }],
  INPUT,
);
add("object loose", z.looseObject({ name: z.string() }), [{ name: "x", more: 1 }]);
add("object catchall", z.object({ name: z.string() }).catchall(z.number()), [{ name: "x", more: 1 }]);
add("object never", z.object({ name: z.string(), old: z.never().optional() }), [{ name: "x" }]);
add(
  "object nested",
  z.strictObject({
    user: z.object({ name: z.string().min(1), email: z.email(), address: Address.partial() }),
    tags: z.array(z.string().max(10)).max(5),
  }),
  [{ user: { name: "Ada", email: "ada@example.com", address: { city: "London" } }, tags: ["x"] }],
);
add("object extended", Address.extend({ country: z.string().length(2).uppercase() }).omit({ street: true }), [
  { city: "Bonn", zip: "53111", country: "DE" },
]);

// Records.
add("record", z.record(z.string(), z.number()), [{ a: 1, b: 2.5 }]);
add("record enum", z.record(z.enum(["a", "b"]), z.int()), [{ a: 1, b: 2 }]);
add("record partial", z.partialRecord(z.enum(["a", "b", "c"]), z.boolean()), [{ b: true }]);
add("record pattern", z.record(z.string().regex(/^[a-z]{2}$/), z.string()), [{ de: "Haus", en: "house" }]);
add("record number keys", z.record(z.number(), z.string()), [{ 1: "a", 2.5: "b" }]);
add("record loose", z.looseRecord(z.string().regex(/^x_/), z.int()), [{ x_a: 1, other: "b" }]);

// Unions and intersections.
add("union", z.union([z.string(), z.int(), z.array(z.string())]), ["a", 3, ["b"]]);
const Circle = z.object({ kind: z.literal("circle"), radius: z.number().positive() });
const Square = z.object({ kind: z.literal("square"), side: z.number().positive() });
add("discriminated union", z.array(z.discriminatedUnion("kind", [Circle, Square])), [[{ kind: "square", side: 2 }]]);
add("xor", z.xor([z.string(), z.number()]), ["a", 1]);
add("intersection", z.intersection(z.looseObject({ a: z.string() }), z.looseObject({ b: z.int() })), [
  { a: "x", b: 1 },
]);
add("intersection objects", z.intersection(z.object({ a: z.string() }), z.object({ b: z.int() })), [{ a: "x", b: 1 }]);

add(
  "openapi nullable",
  z.object({
    a: z.string().max(5).nullable(),
    b: z.null(),
    c: z.union([z.int(), z.boolean()]).nullable(),
    d: z.literal("x"),
  }),
  [
    { a: null, b: null, c: 3, d: "x" },
    { a: "y", b: null, c: null, d: "x" },
  ],
  { target: "openapi-3.0" },
);
const at = (context) =>
  context.zodSchema._zod.def.type === "date" &&
  Object.assign(context.jsonSchema, { type: "string", format: "date-time" });
add("date override", z.object({ at: z.date() }), [], { ...ANY, override: at, unread: true });

// Recursion, pipes and metadata.
const Category = z.object({
  name: z.string(),
  get children() {
    return z.array(Category);
  },
});
add("recursive", Category, [{ name: "a", children: [{ name: "b", children: [] }] }]);
const Node = z
  .object({
    value: z.int(),
    get next() {
      return Node.nullable();
    },
  })
  .meta({ id: "Node" });
add("recursive draft 7", z.object({ head: Node }), [{ head: { value: 1, next: { value: 2, next: null } } }], {
  target: "draft-07",
});
add("json", z.json(), [{ a: [1, "b", null] }]);
add(
  "pipe",
  z.object({
    n: z.string().transform(Number).pipe(z.int()),
    d: z.codec(z.iso.datetime(), z.date(), { decode: (text) => new Date(text), encode: (date) => date.toISOString() }),
  }),
  [{ n: "12", d: "2024-02-29T12:30:00Z" }],
  INPUT,
);
add(
  "meta",
  z
    .object({
      name: z.string().meta({ title: "Name", examples: ["Ada"], placeholder: "your name", "x-order": 1 }),
      old: z.string().meta({ deprecated: true, description: "no more" }),
    })
    .meta({ $comment: "made by hand", "ui:widget": "form", internal: { a: 1 } }),
  [{ name: "x", old: "y" }],
);

writeFileSync(
  new URL("zod.json", import.meta.url),
  `{"packages": {"zod": "${version}"}, "schemas": {\n` +
    Object.entries(schemas)
      .map(([name, entry]) => `${JSON.stringify(name)}: ${JSON.stringify(entry)}`)
      .join(",\n") +
    "\n}}\n",
);
console.log(Object.keys(schemas).length);
