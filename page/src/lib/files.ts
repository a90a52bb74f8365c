// What was dropped, pasted or chosen: loose pictures, pictures that a folder names, and zips.
export type Found = { loose: File[]; named: Map<string, File[]>; zips: File[] };

const PICTURE = /\.(jpe?g|png|gif|webp|bmp|tiff?|heic|heif|ppm|pgm)$/i;
const ZIP = /\.zip$/i;

const nothing = (): Found => ({ loose: [], named: new Map(), zips: [] });
export const count = (found: Found) =>
  found.loose.length + [...found.named.values()].reduce((n, files) => n + files.length, 0);

/** Hidden files and files of the system are left out; everything else goes to the service, which says what is wrong. */
function sort(found: Found, file: File, folder: string | null): void {
  if (file.name.startsWith(".") || /^(Thumbs\.db|desktop\.ini)$/i.test(file.name)) return;
  if (ZIP.test(file.name) || file.type === "application/zip") found.zips.push(file);
  else if (folder === null) found.loose.push(file);
  else if (PICTURE.test(file.name) || file.type.startsWith("image/")) {
    const there = found.named.get(folder);
    if (there) there.push(file);
    else found.named.set(folder, [file]);
  }
}

/** Chosen by a file field; with `webkitdirectory` each file knows its folder. */
export function fromList(files: Iterable<File>): Found {
  const found = nothing();
  for (const file of files) {
    const parts = (file.webkitRelativePath || "").split("/").filter(Boolean);
    sort(found, file, parts.length > 1 ? (parts[parts.length - 2] ?? null) : null);
  }
  return found;
}

function entriesOf(folder: FileSystemDirectoryEntry): Promise<FileSystemEntry[]> {
  const reader = folder.createReader();
  const all: FileSystemEntry[] = [];
  return new Promise((done, failed) => {
    // A reader gives a hundred at a time.
    const more = () => reader.readEntries((some) => (some.length ? (all.push(...some), more()) : done(all)), failed);
    more();
  });
}

async function walk(found: Found, entry: FileSystemEntry, folder: string | null): Promise<void> {
  if (entry.isFile) {
    const file = await new Promise<File>((done, failed) => (entry as FileSystemFileEntry).file(done, failed));
    sort(found, file, folder);
  } else if (entry.isDirectory) {
    const inside = await entriesOf(entry as FileSystemDirectoryEntry);
    for (const one of inside.sort((a, b) => a.name.localeCompare(b.name))) await walk(found, one, entry.name);
  }
}

/** Dropped: files and folders. The list is only valid during the event, so it is read before anything waits. */
export async function fromDrop(transfer: DataTransfer): Promise<Found> {
  const entries = [...transfer.items].filter((i) => i.kind === "file").map((i) => i.webkitGetAsEntry?.() ?? null);
  const files = [...transfer.files];
  if (!entries.length || entries.some((entry) => entry === null)) return fromList(files);
  const found = nothing();
  for (const entry of entries) if (entry) await walk(found, entry, null);
  return found;
}

export function chunks<T>(list: T[], size: number): T[][] {
  return Array.from({ length: Math.ceil(list.length / size) }, (_, i) => list.slice(i * size, (i + 1) * size));
}
