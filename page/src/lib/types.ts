// Short names for what the service takes and gives; openapi.d.ts is made from its OpenAPI (scripts/build_page.py).
import type { components } from "./openapi";

type Schemas = components["schemas"];
export type About = Schemas["About"];
export type Models = Schemas["Models"];
export type ModelItem = Schemas["ModelItem"];
export type Model = Schemas["ModelOut"];
export type Class = Schemas["Class"];
export type Classes = Schemas["Classes"];
export type Examples = Schemas["Examples"];
export type Example = Schemas["Example"];
export type Taught = Schemas["Taught"];
export type Refused = Schemas["RefusedFile"];
export type Chance = Schemas["Probability"];
export type Prediction = Schemas["PredictionOut"];
export type History = Schemas["History"];
export type Revision = Schemas["RevisionOut"];
export type Job = Schemas["JobOut"];
export type Explanation = Schemas["ExplanationOut"];
export type Insight = Schemas["Insight"];
export type ClassInsight = Schemas["ClassInsight"];
export type Map = Schemas["Map"];
export type MapPoint = Schemas["Point"];
export type Cost = Schemas["Cost"];
export type Changed = Schemas["ChangedPicture"];
export type Next = Schemas["Next"];
export type NextPicture = Schemas["NextItem"];
