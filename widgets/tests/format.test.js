import { expect, test } from "vitest";
import { counted, duration, number, percent } from "../format.js";

test("numbers keep three digits and their whole part", () => {
  expect(number(1234.567)).toBe("1,235");
  expect(number(0.123456)).toBe("0.123");
  expect(number(0)).toBe("0");
  expect(number(1.5e-7)).toBe("1.50e-7");
  expect(number(null)).toBe("–");
  expect(number(Number.NaN)).toBe("–");
});

test("durations are in words of their size", () => {
  expect(duration(7.4)).toBe("7 s");
  expect(duration(61)).toBe("1 min 1 s");
  expect(duration(7260)).toBe("2 h 1 min");
  expect(duration(null)).toBe("–");
});

test("shares and counts", () => {
  expect(percent(0.98765)).toBe("98.77 %");
  expect(counted(1, "case")).toBe("1 case");
  expect(counted(10_000, "trial")).toBe("10,000 trials");
});
