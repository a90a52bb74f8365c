// Programs that use this model, filled in. Names come from the service, so they are quoted for each language.
import { absolute, inModel } from "./api";

const quoted = (text: string) => JSON.stringify(text);
const shell = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;

export type Snippet = { language: string; code: string };

export function snippets(model: string, withKey: boolean): Snippet[] {
  const root = new URL(".", document.baseURI).href.replace(/\/$/, "");
  const predictions = absolute(inModel(model, "predictions"));
  const key = "YOUR-KEY";
  return [
    {
      language: "Python",
      code: `import wdae

client = wdae.Client(${quoted(root)}${withKey ? `, key=${quoted(key)}` : ""})
answer = client.predict(${quoted(model)}, "photo.jpg")
print(answer.prediction, answer.probabilities[0].probability)
`,
    },
    {
      language: "curl",
      code: `curl ${withKey ? `-H 'Authorization: Bearer ${key}' ` : ""}-F file=@photo.jpg ${shell(predictions)}
`,
    },
    {
      language: "JavaScript",
      code: `const form = new FormData();
form.append("file", photo); // a File or a Blob
const reply = await fetch(${quoted(predictions)}, {
  method: "POST",${withKey ? `\n  headers: { Authorization: "Bearer ${key}" },` : ""}
  body: form,
});
const { prediction, probabilities } = await reply.json();
`,
    },
  ];
}
