// Products by packed weights of every form, and rows of them as float32. packed.ts has the forms.

import { fourRowsOfSix, rowOfEight, rowOfSix } from "./eight_bits";
import { fourGroups, fourRows, rowOfFour } from "./four_bits";
import { blockBytes, eightBytes, groupBytes, isCentred, isSuper, oneHalf, scaleBytes, superBytes } from "./packed";

function product<Eight, Scales>(
  w: usize,
  q: usize,
  qRow: usize,
  y: usize,
  yRow: usize,
  k: i32,
  begin: i32,
  end: i32,
  rows: i32,
): void {
  const size = groupBytes<Eight, Scales>(k);
  let g = begin;
  if (sizeof<Eight>() != 1 && sizeof<Scales>() != 1 && rows == 1) {
    const quarter = (end - begin) >> 2;
    for (; g < begin + quarter; g++)
      fourGroups<Scales>(
        w + <usize>g * size,
        <usize>quarter * size,
        q,
        y + ((<usize>g) << 5),
        (<usize>quarter) << 5,
        k,
      );
    g += 3 * quarter;
  }
  for (; g < end; g++) {
    const from = w + <usize>g * size;
    const to = y + ((<usize>g) << 5);
    let row = 0;
    if (sizeof<Eight>() != 1 && sizeof<Scales>() != 1)
      for (; row + 4 <= rows; row += 4)
        fourRows<Scales>(from, q + <usize>row * qRow, qRow, to + <usize>row * yRow, yRow, k);
    if (sizeof<Eight>() == 1 && isSuper<Scales>())
      for (; row + 4 <= rows; row += 4)
        fourRowsOfSix(from, q + <usize>row * qRow, qRow, to + <usize>row * yRow, yRow, k);
    for (; row < rows; row++) {
      const a = q + <usize>row * qRow;
      const b = to + <usize>row * yRow;
      if (sizeof<Eight>() == 1 && isSuper<Scales>()) rowOfSix(from, a, b, k);
      else if (sizeof<Eight>() == 1) rowOfEight<Scales>(from, a, b, k);
      else rowOfFour<Scales>(from, a, b, k);
    }
  }
}

/** Products of some rows of activations by some groups of a weight; capstan.device.wasm.cpu_program has the forms. */
export function products(
  form: i32,
  w: usize,
  q: usize,
  qRow: usize,
  y: usize,
  yRow: usize,
  k: i32,
  begin: i32,
  end: i32,
  rows: i32,
): void {
  if (form == 0) product<u16, u32>(w, q, qRow, y, yRow, k, begin, end, rows);
  else if (form == 1) product<u8, u32>(w, q, qRow, y, yRow, k, begin, end, rows);
  else if (form == 2) product<u16, u8>(w, q, qRow, y, yRow, k, begin, end, rows);
  else if (form == 3) product<u8, u8>(w, q, qRow, y, yRow, k, begin, end, rows);
  else if (form == 4) product<u16, u16>(w, q, qRow, y, yRow, k, begin, end, rows);
  else if (form == 5) product<u8, u16>(w, q, qRow, y, yRow, k, begin, end, rows);
  else if (form == 6) product<u16, f32>(w, q, qRow, y, yRow, k, begin, end, rows);
  else if (form == 7) product<u8, f32>(w, q, qRow, y, yRow, k, begin, end, rows);
  else if (form == 8) product<u16, u64>(w, q, qRow, y, yRow, k, begin, end, rows);
  else product<u8, u64>(w, q, qRow, y, yRow, k, begin, end, rows);
}

/** Write a row of a weight as float32. */
function unpackRow<Eight, Scales>(w: usize, row: i32, y: usize, k: i32): void {
  const scales = scaleBytes<Scales>();
  const eight = eightBytes<Scales>();
  const lane = <usize>(row & 7);
  let p = w + <usize>(row >> 3) * groupBytes<Eight, Scales>(k);
  let whole: f32 = 0;
  let wholeMinimum: f32 = 0;
  for (let c = 0; c < k; c++) {
    if (isSuper<Scales>() && !(c & 255)) {
      whole = oneHalf(p + (lane << 1));
      wholeMinimum = sizeof<Eight>() == 1 ? 0 : oneHalf(p + 16 + (lane << 1));
      p += superBytes<Eight, Scales>();
    }
    const inside = c & 31;
    const half = <usize>(inside >> 4);
    const part = scales + ((<usize>((inside & 15) >> 2)) << 5) + (lane << 2) + (inside & 3);
    const block = p + (sizeof<Scales>() == 1 || (isSuper<Scales>() && sizeof<Eight>() == 1) ? half * eight : 0);
    let number: i32;
    if (sizeof<Eight>() == 1) number = load<i8>(p + part + (half << 7));
    else number = half ? load<u8>(p + part) >> 4 : load<u8>(p + part) & 15;
    let d: f32;
    let m: f32;
    if (isSuper<Scales>()) {
      d = whole * <f32>load<i8>(block + lane);
      m = sizeof<Eight>() == 1 ? -32 * d : wholeMinimum * <f32>load<i8>(block + 8 + lane);
    } else if (isCentred<Scales>()) {
      d = oneHalf(block + (lane << 1));
      m = (sizeof<Eight>() == 1 ? <f32>0 : <f32>-8) * d;
    } else if (sizeof<Scales>() == 2) {
      d = oneHalf(block + (lane << 1));
      m = oneHalf(block + 16 + (lane << 1));
    } else {
      d = load<f32>(block + (lane << 2));
      m = load<f32>(block + (sizeof<Scales>() == 1 ? 64 : 32) + (lane << 2));
    }
    store<f32>(y + ((<usize>c) << 2), <f32>number * d + m);
    if (inside == 31) p += blockBytes<Eight, Scales>();
  }
}

/** Look a row up in a table of one of these forms. */
export function lookUp(form: i32, w: usize, row: i32, y: usize, k: i32): void {
  if (form == 0) unpackRow<u16, u32>(w, row, y, k);
  else if (form == 1) unpackRow<u8, u32>(w, row, y, k);
  else if (form == 2) unpackRow<u16, u8>(w, row, y, k);
  else if (form == 3) unpackRow<u8, u8>(w, row, y, k);
  else if (form == 4) unpackRow<u16, u16>(w, row, y, k);
  else if (form == 5) unpackRow<u8, u16>(w, row, y, k);
  else if (form == 6) unpackRow<u16, f32>(w, row, y, k);
  else if (form == 7) unpackRow<u8, f32>(w, row, y, k);
  else if (form == 8) unpackRow<u16, u64>(w, row, y, k);
  else unpackRow<u8, u64>(w, row, y, k);
}
