-- Reads a value and writes nothing.
--
-- KEYS  entry
-- Gives {'value', {value, token, cost us, written, expires, now}} or {'none', {}}
local value = value_of(KEYS[1], '')
if value then
  return {'value', value}
end
return {'none', {}}
