// The camera of this device, and still pictures of it.
export const hasCamera = () => Boolean(navigator.mediaDevices?.getUserMedia);

export async function openCamera(facing: "user" | "environment"): Promise<MediaStream> {
  return navigator.mediaDevices.getUserMedia({
    audio: false,
    video: { facingMode: facing, width: { ideal: 1280 }, height: { ideal: 720 } },
  });
}

export function close(stream: MediaStream | null): void {
  for (const track of stream?.getTracks() ?? []) track.stop();
}

/** What the video shows now, as a JPEG whose shorter side is at most `side` pixels. */
export function still(video: HTMLVideoElement, name: string, side = 640): Promise<File | null> {
  const { videoWidth: w, videoHeight: h } = video;
  if (!w || !h) return Promise.resolve(null);
  const scale = Math.min(1, side / Math.min(w, h));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(w * scale);
  canvas.height = Math.round(h * scale);
  canvas.getContext("2d")?.drawImage(video, 0, 0, canvas.width, canvas.height);
  return new Promise((done) =>
    canvas.toBlob((blob) => done(blob && new File([blob], name, { type: "image/jpeg" })), "image/jpeg", 0.92),
  );
}
