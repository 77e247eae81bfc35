// The events of a rehearsal, unpacked: what every allocation was for, who holds how much after each event, and the highest
// moment of every stretch at every zoom.

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Seven bits a byte, the lowest first; the eighth says that there are more.
function* numbersOf(bytes) {
  let number = 0;
  let factor = 1;
  for (const byte of bytes) {
    number += (byte & 0x7f) * factor;
    factor *= 128;
    if (byte < 0x80) {
      yield number;
      number = 0;
      factor = 1;
    }
  }
}

// The storages in the order of their allocation, and after each event the storage that it is of and the bytes by component.
export async function eventsOf(packed) {
  const count = packed.num_events;
  const found = {
    packed,
    count,
    storageOf: new Int32Array(count).fill(-1),
    sorts: [], // of storages
    allocatedAt: [],
    releasedAt: [],
    totals: new Float64Array(count),
    parts: packed.components.map(() => new Float64Array(count)),
  };
  const live = packed.components.map(() => 0);
  const [from, component, workspaces] = packed.workspaces;
  let event = 0;
  for (const number of numbersOf(await unpacked(packed.events))) {
    if (event === from) live[component] += workspaces;
    if (number % 2) allocate(found, event, (number - 1) / 2, live);
    else if (number) release(found, event, number / 2, live);
    live.forEach((bytes, place) => {
      found.parts[place][event] = bytes;
      found.totals[event] += bytes;
    });
    event += 1;
  }
  found.reserved = reservedOf(packed, count);
  found.levels = levelsOf(found.totals);
  found.peak = found.levels.at(-1)?.[0] ?? 0;
  return found;
}

function allocate(found, event, sort, live) {
  found.storageOf[event] = found.sorts.length;
  found.sorts.push(sort);
  found.allocatedAt.push(event);
  found.releasedAt.push(found.count);
  live[componentOf(found.packed, sort)] += bytesOf(found.packed, sort);
}

function release(found, event, back, live) {
  const storage = found.sorts.length - back;
  found.storageOf[event] = storage;
  found.releasedAt[storage] = event;
  live[componentOf(found.packed, found.sorts[storage])] -= bytesOf(found.packed, found.sorts[storage]);
}

const kindOf = (packed, sort) => packed.kinds[packed.sorts[2 * sort]];
const bytesOf = (packed, sort) => packed.sorts[2 * sort + 1];
const componentOf = (packed, sort) => kindOf(packed, sort)[0];

// What is known of a storage.
export function described(found, storage) {
  const sort = found.sorts[storage];
  const [component, ...texts] = kindOf(found.packed, sort);
  const [maker, operation, tensor, phase] = texts.map((place) => found.packed.texts[place]);
  return { component, maker, operation, tensor, phase, bytes: bytesOf(found.packed, sort), since: found.allocatedAt[storage] };
}

// The largest storages that live after an event, of one component or of all.
export function largestAt(found, event, component, most) {
  const alive = [];
  for (let storage = 0; storage < found.sorts.length && found.allocatedAt[storage] <= event; storage += 1) {
    if (found.releasedAt[storage] <= event) continue;
    const sort = found.sorts[storage];
    if (component !== null && componentOf(found.packed, sort) !== component) continue;
    const bytes = bytesOf(found.packed, sort);
    if (alive.length === most && bytes <= alive[most - 1].bytes) continue;
    let place = alive.length;
    while (place > 0 && alive[place - 1].bytes < bytes) place -= 1;
    alive.splice(place, 0, { storage, bytes });
    alive.length = Math.min(alive.length, most);
  }
  return alive.map(({ storage }) => described(found, storage));
}

function reservedOf(packed, count) {
  const reserved = new Float64Array(count);
  for (let place = 0; place < packed.reserved.length; place += 2) {
    reserved.fill(packed.reserved[place + 1], packed.reserved[place], packed.reserved[place + 2] ?? count);
  }
  return packed.reserved.length ? reserved : null;
}

// Level n has the highest event of every 2 ** n.
function levelsOf(totals) {
  const levels = [Int32Array.from(totals.keys())];
  while (levels.at(-1).length > 1) {
    const below = levels.at(-1);
    const level = new Int32Array(Math.ceil(below.length / 2));
    for (let cell = 0; cell < level.length; cell += 1) {
      const [left, right] = [below[2 * cell], below[2 * cell + 1] ?? below[2 * cell]];
      level[cell] = totals[right] > totals[left] ? right : left;
    }
    levels.push(level);
  }
  return levels;
}

// The highest events of at most `most` stretches from one event to another, and one beyond on either side.
export function momentsWithin(found, from, to, most) {
  let number = 0;
  while ((to - from) / 2 ** (number) > most && number < found.levels.length - 1) number += 1;
  const level = found.levels[number];
  const size = 2 ** (number);
  const first = Math.max(0, Math.floor(from / size) - 1);
  const last = Math.min(level.length, Math.ceil(to / size) + 2);
  return level.subarray(first, last);
}
