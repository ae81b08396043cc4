"""The words that fill the templates. A behaviour uses those that its tokenizer can represent in the form it needs."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MALE_NAMES = _words(
    """
    John Tom James Dan Robert David Michael Mark Paul Peter George Kevin Adam Jason Ryan Jack Charlie William
    Richard Thomas Daniel Matthew Anthony Andrew Joshua Brian Edward Jeff Frank Eric Stephen Scott Justin Gary Nick
    Samuel Ben Greg Alexander Patrick Dennis Jerry Aaron Jose Henry Nathan Douglas Kyle Jeremy Ethan Arthur Joe
    Albert Alan Carl Roger Keith Bob Harry Ron Bill Jim Mike Steve Dave Tim Simon Oliver Luke Sean Ian Philip Martin
    Neil Fred Larry Eddie Marcus Victor Walter Louis Oscar
    """
)
FEMALE_NAMES = _words(
    """
    Mary Alice Sarah Emma Anna Laura Lisa Amy Karen Susan Linda Jennifer Elizabeth Jessica Michelle Kate Emily
    Rachel Maria Julia Jane Barbara Margaret Nancy Sandra Ashley Donna Carol Amanda Melissa Rebecca Stephanie
    Kathleen Helen Anne Ruth Diane Christine Catherine Janet Joyce Victoria Heather Lauren Megan Andrea Hannah
    Jacqueline Martha Ann Sara Alicia Julie Samantha Natalie Katherine Caroline Charlotte Claire Lucy Sophie Olivia
    Eva Ellen Marie Rose Angela Nicole Danielle Katie Erin Molly Jenny Sally Kim Monica Vanessa Tina Isabel Sophia
    """
)

PLACES = _words(
    """
    store park school office library garden restaurant station hospital house market beach museum church farm
    theater bar hotel mall zoo cafe gym bank airport castle stadium river forest lake bridge village studio club
    """
)
OBJECTS = _words(  # all with the article "a"
    """
    book drink ball ring computer bag phone key cup box letter flower hat coat bottle map knife plate card coin
    watch gift guitar lamp candle chair table blanket shirt camera basket pen mirror clock radio painting necklace
    ticket toy brush shoe rope stone glass magazine sandwich cookie spoon bell picture kite drum hammer bucket towel
    """
)

EVENTS = _words(
    """
    war conflict battle siege campaign dynasty empire dispute project expedition journey rebellion revolution strike
    debate plague famine voyage study trial reign alliance occupation construction crusade uprising investigation
    negotiation operation mission movement program reform tour treaty drought festival tournament exhibition race
    invasion crisis struggle marriage partnership contract era
    """
)

ARGUMENTS = _words(
    """
    load size files last path value index state action target source model image text line word table column order
    time price cost level rate score count limit offset width height depth color style group user role host port key
    mode format date name title label field code message result option config method event client server address
    number length node edge input output data
    """
)

SUBJECTS = {
    noun: f"{noun}s"
    for noun in _words("""
    author teacher doctor student writer worker driver lawyer player singer actor farmer manager officer artist
    soldier friend leader girl boy king parent son daughter guy guest customer patient neighbor visitor sister
    brother scientist engineer expert owner member dog cat bird horse chef pilot judge guard director professor
    reporter editor runner
    """)
}
PREPOSITIONS = ("near", "behind", "beside", "above", "with", "by", "across from", "next to")
ATTRACTORS = _words(
    """
    cars trees houses tables chairs books buildings windows doors boxes bikes trucks boats flowers cabinets pictures
    rocks bottles lamps gardens bridges stores shops towers walls hills rivers machines computers plants animals
    mountains horses dogs cats chickens cows planes trains buses
    """
)

ACRONYM_WORDS = _words(
    """
    Federal Reserve Board National Security Agency Central Bank American Medical Association World Health
    Organization Public Research Institute United States Department Energy European Space Council Human Rights
    Commission International Trade Union General Motor Company Royal Society Environmental Protection Committee
    Digital Media Group Advanced Technology Center Global Finance Network Social Science Foundation Urban
    Development Program Local Government Office Modern History Museum Northern Light House Eastern Railway Service
    Western Power Station Southern Water Authority Regional Transport Bureau Civil Defense Force Basic Income Plan
    Open Source Project Private Equity Fund Data Quality Review Child Welfare League Virtual Reality Lab Mobile
    Phone Market Labor Relations Team Nuclear Test Zone Legal Aid Clinic Youth Sports Federation Professional
    Teachers Academy Junior Chess Club Marine Wildlife Trust Industrial Design School Cultural Heritage Library
    Mental Care Hospital Annual Budget Report Electric Vehicle Industry Joint Task Unit Language Learning System
    Early Warning Radar Heavy Metal Band Green Party Alliance Free Software Movement Home Owners Register Personal
    Computer User Guide Key Value Index
    """
)

# Ordered by how many tokenizers have the capital as one token: the parts take every third country, so each gets its
# share. For a capital of two words, the answer is the first word.
CAPITALS = {
    "France": "Paris", "England": "London", "Germany": "Berlin", "Spain": "Madrid", "Italy": "Rome", "Russia": "Moscow",
    "Japan": "Tokyo", "China": "Beijing", "Egypt": "Cairo", "Greece": "Athens", "Austria": "Vienna", "Poland": "Warsaw",
    "Portugal": "Lisbon", "Ireland": "Dublin", "Norway": "Oslo", "Sweden": "Stockholm", "Denmark": "Copenhagen",
    "Finland": "Helsinki", "Hungary": "Budapest", "Belgium": "Brussels", "Iraq": "Baghdad", "Iran": "Tehran",
    "Syria": "Damascus", "Afghanistan": "Kabul", "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago",
    "Ukraine": "Kiev", "Canada": "Ottawa", "Australia": "Canberra", "Switzerland": "Bern", "Israel": "Jerusalem",
    "Jamaica": "Kingston", "Scotland": "Edinburgh", "Wales": "Cardiff", "Argentina": "Buenos", "South Korea": "Seoul",
    "the Philippines": "Manila", "the Netherlands": "Amsterdam", "the Czech Republic": "Prague",
    "Northern Ireland": "Belfast", "New Zealand": "Wellington", "the United Arab Emirates": "Abu",
    "the United States": "Washington", "the United Kingdom": "London", "the Soviet Union": "Moscow",
    "Guyana": "Georgetown", "Kenya": "Nairobi", "Bulgaria": "Sofia", "West Germany": "Bonn", "Turkey": "Ankara",
    "Lebanon": "Beirut", "Pakistan": "Islamabad", "Thailand": "Bangkok", "Indonesia": "Jakarta",
    "North Korea": "Pyongyang", "Saudi Arabia": "Riyadh", "Libya": "Tripoli", "Malaysia": "Kuala",
    "Bangladesh": "Dhaka", "Vietnam": "Hanoi", "Venezuela": "Caracas", "Colombia": "Bogota", "Ecuador": "Quito",
    "Uruguay": "Montevideo", "Romania": "Bucharest", "Serbia": "Belgrade", "Croatia": "Zagreb", "Latvia": "Riga",
    "Lithuania": "Vilnius", "Nepal": "Kathmandu", "Morocco": "Rabat", "Somalia": "Mogadishu", "Ghana": "Accra",
    "Senegal": "Dakar", "Jordan": "Amman", "Qatar": "Doha", "Cyprus": "Nicosia", "Taiwan": "Taipei",
    "Zimbabwe": "Harare", "Uganda": "Kampala", "Sudan": "Khartoum", "Algeria": "Algiers", "Armenia": "Yerevan",
    "Belarus": "Minsk", "Albania": "Tirana", "Bosnia": "Sarajevo", "Angola": "Luanda", "Nigeria": "Abuja",
    "Rwanda": "Kigali", "Georgia": "Tbilisi", "Azerbaijan": "Baku", "Iceland": "Reykjavik", "Slovenia": "Ljubljana",
    "Slovakia": "Bratislava", "Estonia": "Tallinn", "Ethiopia": "Addis", "Cambodia": "Phnom", "Oman": "Muscat",
    "Zambia": "Lusaka", "Liberia": "Monrovia",
}  # fmt: skip

CATEGORIES = {
    "an animal": _words("cat dog horse cow lion tiger bear rabbit mouse monkey snake duck goat sheep fox"),
    "a fruit": _words("apple banana orange lemon cherry peach grape mango berry"),
    "a color": _words("red blue green yellow purple pink brown black white gray"),
    "a vehicle": _words("car truck bus train boat plane ship bicycle van taxi"),
    "a tool": _words("hammer saw knife drill axe wrench shovel"),
    "a drink": _words("coffee tea milk juice beer wine water"),
    "a piece of clothing": _words("shirt hat coat dress jacket sock skirt"),
}
