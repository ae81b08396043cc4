"""The word pairs of the few-shot relations: query, answer."""

from __future__ import annotations

from itertools import pairwise

Words = tuple[tuple[str, str], ...]


def _pairs(text: str) -> Words:
    """Reads `big bigger, old older`: commas between the pairs, a space within."""
    pairs = [pair.split() for pair in text.split(",")]
    return tuple((first, second) for first, second in pairs)


def _successors(text: str) -> Words:
    """Pairs each word with the next one."""
    return tuple(pairwise(text.split()))


def _inverse(words: Words) -> Words:
    return tuple((second, first) for first, second in words)


NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen twenty"
)
MONTHS = "January February March April May June July August September October November December January"
LETTERS = "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z"

# ---- grammar --------------------------------------------------------------------------------------------------------

COMPARATIVE = _pairs("""
    big bigger, old older, fast faster, small smaller, tall taller, long longer, short shorter, strong stronger,
    weak weaker, high higher, low lower, deep deeper, wide wider, hard harder, soft softer, cold colder, warm warmer,
    hot hotter, cool cooler, dark darker, light lighter, bright brighter, rich richer, poor poorer, young younger,
    new newer, slow slower, quick quicker, cheap cheaper, clean cleaner, clear clearer, close closer, easy easier,
    early earlier, late later, heavy heavier, happy happier, large larger, great greater, nice nicer, safe safer,
    simple simpler, smart smarter, thick thicker, thin thinner
""")
SUPERLATIVE = _pairs("""
    big biggest, old oldest, fast fastest, small smallest, tall tallest, long longest, short shortest,
    strong strongest, high highest, low lowest, deep deepest, hard hardest, cold coldest, hot hottest, dark darkest,
    bright brightest, rich richest, poor poorest, young youngest, new newest, cheap cheapest, close closest,
    easy easiest, early earliest, late latest, heavy heaviest, happy happiest, large largest, great greatest,
    nice nicest, safe safest, simple simplest, good best, bad worst, near nearest, fine finest, weak weakest,
    wide widest, smart smartest, pure purest
""")
PAST_TENSE = _pairs("""
    go went, see saw, take took, give gave, come came, run ran, write wrote, eat ate, drink drank, sing sang, swim swam,
    begin began, break broke, speak spoke, choose chose, drive drove, ride rode, fly flew, grow grew, know knew,
    throw threw, draw drew, fall fell, feel felt, keep kept, leave left, lose lost, make made, meet met, pay paid,
    say said, sell sold, send sent, sit sat, stand stood, teach taught, tell told, think thought, win won, find found,
    build built, buy bought, bring brought, catch caught, fight fought
""")
BASE_FORM = _inverse(PAST_TENSE)
PAST_PARTICIPLE = _pairs("""
    go gone, see seen, take taken, give given, write written, eat eaten, break broken, speak spoken, choose chosen,
    drive driven, fly flown, grow grown, know known, throw thrown, draw drawn, fall fallen, steal stolen, hide hidden,
    do done, be been, forget forgotten, prove proven, wake woken, freeze frozen, rise risen, show shown, wear worn,
    tear torn, bite bitten, forgive forgiven, shake shaken, swear sworn, begin begun, sing sung, drink drunk
""")
PARTICIPLE = _pairs("""
    go going, run running, walk walking, talk talking, write writing, read reading, eat eating, drink drinking,
    sing singing, swim swimming, play playing, work working, sleep sleeping, make making, take taking, give giving,
    come coming, look looking, see seeing, say saying, think thinking, learn learning, teach teaching, build building,
    buy buying, sell selling, drive driving, fly flying, fight fighting, fall falling, grow growing, hold holding,
    keep keeping, leave leaving, live living, move moving, pay paying, sit sitting, stand standing, stop stopping,
    turn turning, wait waiting, watch watching, win winning, help helping
""")
THIRD_PERSON = _pairs("""
    go goes, run runs, walk walks, talk talks, write writes, read reads, eat eats, drink drinks, play plays, work works,
    sleep sleeps, make makes, take takes, give gives, come comes, look looks, see sees, say says, think thinks,
    learn learns, teach teaches, build builds, buy buys, sell sells, drive drives, fly flies, fall falls, grow grows,
    hold holds, keep keeps, leave leaves, live lives, move moves, pay pays, sit sits, stand stands, stop stops,
    turn turns, have has, do does, know knows, want wants, need needs, tell tells, try tries
""")
PLURAL = _pairs("""
    cat cats, dog dogs, house houses, car cars, tree trees, book books, man men, woman women, child children, foot feet,
    tooth teeth, mouse mice, city cities, baby babies, lady ladies, story stories, country countries, box boxes,
    bus buses, church churches, knife knives, wife wives, life lives, leaf leaves, wolf wolves, person people,
    table tables, hand hands, eye eyes, king kings, day days, year years, boy boys, girl girls, bird birds,
    horse horses, door doors, game games, road roads, song songs, army armies, watch watches, class classes
""")
SINGULAR = _inverse(PLURAL)
AGENT_NOUN = _pairs("""
    teach teacher, write writer, sing singer, drive driver, run runner, play player, work worker, farm farmer,
    bake baker, paint painter, dance dancer, lead leader, read reader, build builder, design designer, own owner,
    manage manager, speak speaker, use user, buy buyer, sell seller, fight fighter, hunt hunter, win winner,
    lose loser, kill killer, help helper, listen listener, report reporter, train trainer, print printer,
    program programmer, act actor, direct director, edit editor, invent inventor, invest investor, visit visitor,
    sail sailor, govern governor, create creator, educate educator, conduct conductor
""")
ADVERB = _pairs("""
    quick quickly, slow slowly, happy happily, sad sadly, easy easily, clear clearly, quiet quietly, loud loudly,
    careful carefully, sudden suddenly, certain certainly, final finally, general generally, usual usually,
    real really, actual actually, exact exactly, direct directly, perfect perfectly, complete completely,
    recent recently, rapid rapidly, strong strongly, deep deeply, high highly, wide widely, clean cleanly,
    rare rarely, serious seriously, obvious obviously, possible possibly, probable probably, simple simply,
    gentle gently, heavy heavily, heart heartily, angry angrily, bad badly, safe safely, nice nicely
""")
NEGATIVE_PREFIX = _pairs("""
    happy unhappy, able unable, known unknown, likely unlikely, fair unfair, usual unusual, clear unclear,
    certain uncertain, stable unstable, healthy unhealthy, common uncommon, expected unexpected, aware unaware,
    important unimportant, necessary unnecessary, possible impossible, patient impatient, perfect imperfect,
    correct incorrect, complete incomplete, visible invisible, direct indirect, dependent independent,
    accurate inaccurate, formal informal, legal illegal, regular irregular, like dislike, agree disagree,
    appear disappear, honest dishonest, connect disconnect, cover uncover, lock unlock, do undo, fold unfold
""")
VERB_NOUN = _pairs("""
    act action, create creation, educate education, inform information, produce production, protect protection,
    collect collection, connect connection, direct direction, elect election, invent invention, invite invitation,
    decide decision, discuss discussion, explain explanation, express expression, operate operation,
    communicate communication, celebrate celebration, describe description, destroy destruction, reduce reduction,
    introduce introduction, organize organization, observe observation, permit permission, select selection,
    solve solution, suggest suggestion, translate translation, develop development, move movement, treat treatment,
    agree agreement, argue argument, govern government, improve improvement, invest investment, pay payment
""")
ADJECTIVE_NOUN = _pairs("""
    happy happiness, dark darkness, sad sadness, ill illness, weak weakness, aware awareness, kind kindness,
    fit fitness, lonely loneliness, sick sickness, mad madness, bright brightness, thick thickness, sweet sweetness,
    conscious consciousness, strong strength, long length, wide width, deep depth, high height, warm warmth, true truth,
    young youth, dead death, hot heat, free freedom, wise wisdom, poor poverty, able ability, real reality,
    possible possibility, safe safety, beautiful beauty, honest honesty, difficult difficulty, certain certainty,
    stable stability, simple simplicity, secure security, equal equality
""")

# ---- knowledge ------------------------------------------------------------------------------------------------------

OPPOSITE = _pairs("""
    hot cold, big small, tall short, fast slow, old young, rich poor, happy sad, good bad, light dark, hard soft,
    strong weak, high low, wet dry, full empty, early late, open closed, clean dirty, near far, left right, up down,
    in out, day night, black white, true false, first last, begin end, love hate, win lose, buy sell, push pull,
    give take, come go, war peace, life death, north south, east west, top bottom, wide narrow, deep shallow,
    inside outside, before after, always never, above below, cheap expensive
""")
MALE_FEMALE = _pairs("""
    king queen, man woman, boy girl, father mother, son daughter, brother sister, husband wife, uncle aunt,
    prince princess, actor actress, grandfather grandmother, nephew niece, gentleman lady, duke duchess, lord lady,
    god goddess, hero heroine, waiter waitress, emperor empress, wizard witch, dad mom, grandson granddaughter,
    groom bride, monk nun, bull cow, rooster hen, he she, him her, his hers, himself herself, male female, sir madam,
    host hostess, guy girl, lion lioness, stallion mare
""")
CATEGORY = _pairs("""
    dog animal, rose flower, apple fruit, hammer tool, red color, piano instrument, car vehicle, shirt clothing,
    carrot vegetable, gold metal, France country, Paris city, football sport, doctor profession, eagle bird,
    salmon fish, oak tree, ant insect, chair furniture, coffee drink, Monday day, July month, summer season,
    square shape, circle shape, Mars planet, hydrogen element, banana fruit, guitar instrument, tiger animal,
    blue color, truck vehicle, soccer sport, tennis sport, iron metal, silver metal, copper metal, tulip flower,
    violin instrument, hawk bird, trout fish, pine tree, table furniture, tea drink, potato vegetable, lawyer profession
""")
WORKPLACE = _pairs("""
    teacher school, doctor hospital, nurse hospital, chef kitchen, cook kitchen, farmer farm, pilot plane,
    sailor ship, judge court, lawyer court, scientist laboratory, actor theater, priest church, professor university,
    student school, waiter restaurant, soldier army, miner mine, librarian library, banker bank, driver car,
    gardener garden, astronaut space, king palace, monk monastery, artist studio, athlete stadium, secretary office,
    mechanic garage, prisoner prison, worker factory, captain ship, guard prison
""")
COUNTRY_LANGUAGE = _pairs("""
    France French, Germany German, Spain Spanish, Italy Italian, China Chinese, Japan Japanese, Russia Russian,
    England English, Portugal Portuguese, Greece Greek, Poland Polish, Sweden Swedish, Norway Norwegian,
    Denmark Danish, Finland Finnish, Turkey Turkish, Iran Persian, Israel Hebrew, Egypt Arabic, Thailand Thai,
    Vietnam Vietnamese, Korea Korean, Hungary Hungarian, Brazil Portuguese, Mexico Spanish, Austria German,
    Argentina Spanish, Iraq Arabic, Australia English, America English, Cuba Spanish, Ukraine Ukrainian,
    Netherlands Dutch, Romania Romanian, Chile Spanish, Peru Spanish, Colombia Spanish, Syria Arabic, India Hindi,
    Pakistan Urdu, Ireland Irish, Wales Welsh
""")
DEMONYM = _pairs("""
    France French, Germany German, Spain Spanish, Italy Italian, China Chinese, Japan Japanese, Russia Russian,
    England English, Portugal Portuguese, Greece Greek, Poland Polish, Sweden Swedish, Norway Norwegian,
    Denmark Danish, Finland Finnish, Turkey Turkish, Iran Iranian, Israel Israeli, Egypt Egyptian, Thailand Thai,
    Vietnam Vietnamese, Korea Korean, Hungary Hungarian, Brazil Brazilian, Mexico Mexican, Austria Austrian,
    Iraq Iraqi, Australia Australian, America American, Cuba Cuban, Ukraine Ukrainian, Netherlands Dutch,
    India Indian, Pakistan Pakistani, Ireland Irish, Wales Welsh, Scotland Scottish, Canada Canadian, Rome Roman,
    Britain British, Europe European, Africa African, Asia Asian
""")
COUNTRY_CONTINENT = _pairs("""
    France Europe, Germany Europe, Spain Europe, Italy Europe, China Asia, Japan Asia, India Asia, Egypt Africa,
    Nigeria Africa, Kenya Africa, Poland Europe, Sweden Europe, Norway Europe, Greece Europe, Thailand Asia,
    Vietnam Asia, Korea Asia, Iran Asia, Iraq Asia, Ghana Africa, Morocco Africa, Ethiopia Africa, Uganda Africa,
    Canada America, Mexico America, Brazil America, Argentina America, Chile America, Peru America, Cuba America,
    Portugal Europe, Austria Europe, Hungary Europe, Pakistan Asia, Indonesia Asia, Malaysia Asia, Tanzania Africa,
    Sudan Africa, Finland Europe, Denmark Europe, Colombia America, Venezuela America
""")
CITY_COUNTRY = _pairs("""
    Milan Italy, Munich Germany, Barcelona Spain, Sydney Australia, Toronto Canada, Mumbai India, Shanghai China,
    Istanbul Turkey, Naples Italy, Venice Italy, Florence Italy, Hamburg Germany, Frankfurt Germany, Manchester England,
    Liverpool England, Oxford England, Glasgow Scotland, Melbourne Australia, Montreal Canada, Vancouver Canada,
    Marseille France, Lyon France, Kyoto Japan, Osaka Japan, Dubai Emirates, Zurich Switzerland, Geneva Switzerland,
    Seville Spain, Lagos Nigeria, Kolkata India, Karachi Pakistan, Calcutta India, Bombay India, Hiroshima Japan,
    Birmingham England, Cambridge England, Delhi India, Leeds England, Bristol England, Perth Australia, Cologne Germany
""")
PRODUCT_COMPANY = _pairs("""
    iPhone Apple, Windows Microsoft, Android Google, iPad Apple, Mac Apple, Excel Microsoft, Xbox Microsoft,
    PlayStation Sony, Gmail Google, Kindle Amazon, Photoshop Adobe, Chrome Google, YouTube Google, iTunes Apple,
    Word Microsoft, Office Microsoft, Alexa Amazon, Siri Apple, Instagram Facebook, WhatsApp Facebook, iPod Apple,
    Azure Microsoft, Java Oracle, Galaxy Samsung, Bing Microsoft, PowerPoint Microsoft, Outlook Microsoft,
    Mustang Ford, Civic Honda, Walkman Sony, Skype Microsoft, LinkedIn Microsoft, Safari Apple, Pentium Intel
""")
ELEMENT_SYMBOL = _pairs("""
    iron Fe, gold Au, silver Ag, copper Cu, sodium Na, calcium Ca, zinc Zn, oxygen O, hydrogen H, carbon C, nitrogen N,
    helium He, lithium Li, magnesium Mg, aluminum Al, silicon Si, sulfur S, chlorine Cl, potassium K, lead Pb, tin Sn,
    mercury Hg, nickel Ni, iodine I, uranium U, neon Ne, argon Ar, titanium Ti, manganese Mn, cobalt Co, phosphorus P,
    platinum Pt, fluorine F, barium Ba, arsenic As, chromium Cr, tungsten W, bromine Br
""")
STATE_ABBREVIATION = _pairs("""
    Texas TX, California CA, Florida FL, Ohio OH, Michigan MI, Illinois IL, Georgia GA, Virginia VA, Washington WA,
    Oregon OR, Colorado CO, Arizona AZ, Utah UT, Nevada NV, Iowa IA, Kansas KS, Missouri MO, Minnesota MN, Wisconsin WI,
    Indiana IN, Kentucky KY, Tennessee TN, Alabama AL, Louisiana LA, Maryland MD, Maine ME, Vermont VT, Montana MT,
    Pennsylvania PA, Massachusetts MA, Connecticut CT, Oklahoma OK, Nebraska NE, Idaho ID, Delaware DE, Hawaii HI,
    Alaska AK, Arkansas AR, Wyoming WY, Mississippi MS
""")

# ---- meaning and use ------------------------------------------------------------------------------------------------

SYNONYM = _pairs("""
    big large, begin start, happy glad, fast quick, smart intelligent, sick ill, end finish, small little, buy purchase,
    help assist, choose select, rich wealthy, angry mad, sad unhappy, house home, car automobile, child kid,
    road street, stone rock, job work, speak talk, look see, hard difficult, easy simple, correct right,
    wrong incorrect, strange weird, quiet silent, close shut, jump leap, gift present, error mistake, answer reply,
    ask inquire, show display, brave courageous, calm peaceful, rule law, whole entire, allow permit, obtain get,
    attempt try, movie film, location place, danger risk, enemy foe
""")
BRITISH_SPELLING = _pairs("""
    color colour, center centre, favor favour, honor honour, labor labour, theater theatre, meter metre,
    defense defence, license licence, gray grey, program programme, analyze analyse, organize organise,
    realize realise, recognize recognise, behavior behaviour, neighbor neighbour, traveling travelling,
    aluminum aluminium, catalog catalogue, humor humour, flavor flavour, harbor harbour, fiber fibre, offense offence,
    emphasize emphasise, mold mould, favorite favourite, modeling modelling, traveled travelled, canceled cancelled,
    organization organisation, colored coloured, colors colours, centers centres, labeled labelled,
    neighborhood neighbourhood, maximize maximise, minimize minimise, utilize utilise, armor armour, vapor vapour,
    plow plough, dialog dialogue, fulfill fulfil, math maths
""")
PART_OF_SPEECH = _pairs("""
    run verb, table noun, quick adjective, quickly adverb, eat verb, house noun, happy adjective, slowly adverb,
    write verb, dog noun, red adjective, sing verb, car noun, beautiful adjective, he pronoun, she pronoun,
    under preposition, with preposition, and conjunction, but conjunction, they pronoun, book noun, tall adjective,
    sleep verb, easily adverb, tree noun, jump verb, it pronoun, from preposition, or conjunction, chair noun,
    big adjective, go verb, see verb, old adjective, into preposition, very adverb, we pronoun, city noun, often adverb
""")
VERB_OBJECT = _pairs("""
    read book, drink water, drive car, eat food, sing song, wear clothes, ride horse, climb mountain, play game,
    write letter, throw ball, paint picture, cook meal, open door, fly plane, sail boat, bake bread, solve problem,
    ask question, tell story, win prize, spend money, watch movie, cut hair, learn language, wash dishes, build house,
    catch fish, hunt deer, plant tree, grow crops, smoke cigarette, sign contract, teach student, obey law, brush teeth,
    tie knot, light fire, shoot gun, milk cow, pay bill, raise child, break rule, cross street, feed baby, cure disease
""")
MAKER_PRODUCT = _pairs("""
    baker bread, painter painting, author book, farmer crops, brewer beer, composer music, poet poem,
    architect building, tailor clothes, chef meal, writer novel, carpenter furniture, photographer photograph,
    sculptor sculpture, programmer software, singer song, director film, butcher meat, dancer dance, scientist theory,
    journalist article, inventor invention, miner coal, playwright play, engineer machine, builder house,
    blacksmith sword, teacher lesson, judge verdict, priest sermon, hen egg, bee honey, cow milk, spider web, sheep wool,
    tree fruit, editor magazine, artist picture, actor role, gardener flower, lawyer contract, developer app,
    translator translation, doctor diagnosis, critic review, designer design
""")
CAUSE_EFFECT = _pairs("""
    virus infection, fire smoke, rain flood, sun heat, smoking cancer, drought famine, bacteria disease, sugar obesity,
    exercise fitness, study knowledge, joke laughter, injury pain, crime punishment, war death, heat sweat, storm damage,
    bomb explosion, poverty crime, stress anxiety, allergy sneeze, poison death, accident injury, noise headache,
    music joy, loss grief, age wrinkles, salt thirst, food energy, insult anger, medicine cure, sleep rest,
    earthquake tsunami, fear panic, alcohol addiction, spark fire, vaccine immunity, cloud rain, failure disappointment,
    success happiness, practice skill, greed corruption, wind waves, moon tide, debt bankruptcy, cut blood, flu fever
""")
PLACE_CONTENTS = _pairs("""
    bakery bread, pharmacy medicine, library books, bar beer, museum art, zoo animals, garage cars, school students,
    hospital patients, farm crops, prison prisoners, bank money, theater plays, cinema movies, stadium sports,
    airport planes, port ships, kitchen food, garden flowers, restaurant food, forest trees, ocean fish, desert sand,
    mine coal, factory machines, stable horses, court judges, studio paintings, gym exercise, market goods,
    laboratory experiments, aquarium fish, parliament politicians, university professors, hotel guests,
    gallery paintings, orchard apples, vineyard grapes, cemetery graves, barn hay, harbor boats, office workers,
    pool water, nursery babies, sky clouds, jungle monkeys
""")
WORN_ON = _pairs("""
    hat head, shoe foot, glove hand, ring finger, sock foot, belt waist, watch wrist, glasses eyes, helmet head,
    necklace neck, boot foot, tie neck, crown head, cap head, shirt chest, pants legs, mask face, veil face,
    backpack back, goggles eyes, jeans legs, skate foot, bra breast, hood head, collar neck, headphones ears,
    contact eye, tattoo skin, sleeve arm, socks feet, shoes feet, gloves hands, boots feet, sunglasses eyes,
    braces teeth, shorts legs, vest chest, badge chest
""")

# ---- more knowledge -------------------------------------------------------------------------------------------------

FIRST_NAME = _pairs("""
    Einstein Albert, Darwin Charles, Newton Isaac, Shakespeare William, Lincoln Abraham, Washington George,
    Jefferson Thomas, Kennedy John, Roosevelt Franklin, Churchill Winston, Stalin Joseph, Lenin Vladimir, Marx Karl,
    Trump Donald, Obama Barack, Clinton Bill, Bush George, Reagan Ronald, Nixon Richard, Carter Jimmy, Putin Vladimir,
    Thatcher Margaret, Mandela Nelson, Dickens Charles, Twain Mark, Hemingway Ernest, Poe Edgar, Orwell George,
    Picasso Pablo, Columbus Christopher, Franklin Benjamin, Hamilton Alexander, Edison Thomas, Ford Henry, Jobs Steve,
    Jackson Michael, Bach Johann, Nietzsche Friedrich, Austen Jane, Hawking Stephen, Wilson Woodrow, Blair Tony,
    Cameron David, Biden Joe, Truman Harry, Hume David
""")
SCIENCE_SUBJECT = _pairs("""
    biology life, astronomy stars, geology rocks, botany plants, linguistics language, economics money, history past,
    psychology mind, physics matter, chemistry chemicals, genetics genes, mathematics numbers, geography maps,
    medicine disease, ecology environment, anatomy body, law justice, theology God, philosophy wisdom,
    sociology society, politics power, music sound, art beauty, algebra equations, geometry shapes, grammar language,
    anthropology humans, neurology brain, statistics data, optics light, literature books, architecture buildings,
    agriculture crops, nutrition food, astrology stars, archaeology artifacts, ethics morality, mechanics motion,
    logic reasoning, dentistry teeth, thermodynamics heat, cosmology universe, poetry poems, finance money,
    toxicology poisons, computing computers
""")
UNIT_QUANTITY = _pairs("""
    meter length, gram mass, second time, watt power, volt voltage, degree temperature, liter volume, mile distance,
    hour time, pound weight, dollar money, acre area, byte data, calorie energy, inch length, amp current, minute time,
    kilogram mass, kilometer distance, foot length, gallon volume, ton weight, bit information, year age, day time,
    euro money, cent money, knot speed, ounce weight, pint volume, pixel resolution, yard distance,
    hectare area, centimeter length, lux light, mole amount, bar pressure, horsepower power, cup volume, month time,
    week time
""")
LANGUAGE_CODE = _pairs("""
    English en, French fr, German de, Spanish es, Italian it, Russian ru, Japanese ja, Swedish sv, Norwegian no,
    Danish da, Finnish fi, Polish pl, Czech cs, Greek el, Turkish tr, Arabic ar, Hebrew he, Hindi hi, Korean ko,
    Portuguese pt, Romanian ro, Bulgarian bg, Ukrainian uk, Croatian hr, Serbian sr, Vietnamese vi, Thai th, Persian fa,
    Latin la, Welsh cy, Irish ga, Catalan ca, Indonesian id, Malay ms, Urdu ur, Tamil ta, Albanian sq, Armenian hy,
    Basque eu
""")

# ---- sequences ------------------------------------------------------------------------------------------------------

MONTH_SUCCESSOR = _successors(MONTHS)
NUMBER_SUCCESSOR = _successors(NUMBERS)
LETTER_SUCCESSOR = _successors(LETTERS)
MONTH_ABBREVIATION = _pairs("""
    January Jan, February Feb, March Mar, April Apr, June Jun, July Jul, August Aug, September Sep, October Oct,
    November Nov, December Dec, Monday Mon, Tuesday Tue, Wednesday Wed, Thursday Thu, Friday Fri, Saturday Sat,
    Sunday Sun
""")

# ---- letters --------------------------------------------------------------------------------------------------------

COMMON = """
    apple house river garden music water paper stone light winter silver market window doctor table green money bread
    forest island castle summer orange bridge father city night king open party queen school under valley yellow energy
    cloud dream field happy knife
"""
CAPITALISE = tuple((word, word.capitalize()) for word in COMMON.split())
LOWERCASE = _inverse(CAPITALISE)
SHORT = """
    the and for not you all new one day end yes now red big top get set out good free love life time best stop open next
    start home work news book data file test list name type key
"""
UPPERCASE = tuple((word, word.upper()) for word in SHORT.split())
FIRST_LETTER = tuple((word, word[0].upper()) for word in COMMON.split())
WORD_REPEAT = tuple((word, word) for word in COMMON.split())
